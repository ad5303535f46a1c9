"""What a newcomer needs to see once the stack is up."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .faults import at_work
from .ministack.server import REGION
from .stack import LocalStack


def show(console: Console, stack: LocalStack) -> None:
    """Endpoint, bucket, queues, and how to enqueue with what is at hand."""
    queue = "emails" if "emails" in stack.workers else min(stack.workers)
    body = (
        '{"to": "ada@example.com", "subject": "Hello"}'
        if queue == "emails"
        else '{"id": 17, "email": "ada@example.com"}'
    )
    said = stack.cdk.variables
    mails = said.get("EMAIL_SMTP_HOST") or said.get("EMAIL_OUTBOX")
    outbox = f"[bold]mails[/]     {mails}\n" if mails else ""
    spark = f", of Spark runs: {stack.server.home.emr}/*/stdout" if stack.deployment.spark_entry_point else ""
    trust = f"export AWS_CA_BUNDLE={stack.state.certificate}\n" if stack.state.certificate else ""
    verify = f', verify="{stack.state.certificate}"' if stack.state.certificate else ""
    # soft_wrap: a wrapped command cannot be pasted.
    console.print(
        f"""
[bold]endpoint[/]  {stack.state.endpoint}
[bold]bucket[/]    {stack.bucket}, kept over a restart
[bold]queues[/]    {", ".join(sorted(stack.workers))}
{outbox}[bold]logs[/]      {stack.server.home.server_log}{spark}

[bold]In another terminal[/]

export S3QUEUE_URL=s3://{stack.bucket} AWS_ENDPOINT_URL={stack.state.endpoint} AWS_REGION={REGION}
export AWS_ACCESS_KEY_ID={stack.state.key} AWS_SECRET_ACCESS_KEY={stack.state.secret}
{trust}s3queue send {queue} '{escape(body)}'
s3queue queues

[bold]or with the AWS CLI[/]

echo '{escape(body)}' | aws s3 cp - s3://{stack.bucket}/{queue}/messages/hello.json
aws s3 ls --recursive s3://{stack.bucket}/{queue}/

[bold]or with boto3[/]

s3 = boto3.client("s3", endpoint_url="{stack.state.endpoint}", region_name="{REGION}",
                  aws_access_key_id="{stack.state.key}", aws_secret_access_key="{stack.state.secret}"{verify})
s3.put_object(Bucket="{stack.bucket}", Key="{queue}/messages/p200/urgent.json", Body=b'{escape(body)}')
""",
        soft_wrap=True,
    )


def status(console: Console, stack: LocalStack) -> None:
    """Who is there and what they are doing."""
    console.print(f"{stack.state.endpoint}  pid {stack.state.pid}  s3://{stack.bucket}", soft_wrap=True)
    working = at_work(stack)
    table = Table("function", "at work", "limit")
    for function in sorted([*stack.workers.values(), stack.sweeper]):
        answer = stack.client("lambda").get_function_concurrency(FunctionName=function)
        limit = answer.get("ReservedConcurrentExecutions", "none")
        table.add_row(function, str(working.get(function, 0)), str(limit))
    console.print(table)
