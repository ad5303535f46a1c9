"""What a newcomer needs to see once the stack is up."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from .faults import at_work
from .ministack.server import REGION
from .stack import LocalStack


def show(console: Console, stack: LocalStack) -> None:
    """Endpoint, bucket, queues, and how to enqueue with what is at hand."""
    queue = "emails" if "emails" in stack.workers else next(iter(stack.workers))
    trust = f"export AWS_CA_BUNDLE={stack.state.certificate}\n" if stack.state.certificate else ""
    verify = f', verify="{stack.state.certificate}"' if stack.state.certificate else ""
    # soft_wrap: a wrapped command cannot be pasted.
    console.print(
        f"""
[bold]endpoint[/]  {stack.state.endpoint}
[bold]bucket[/]    {stack.bucket}
[bold]queues[/]    {", ".join(sorted(stack.workers))}
[bold]mails[/]     {stack.cdk.variables.get("EMAIL_SMTP_HOST") or stack.cdk.variables.get("EMAIL_OUTBOX")}
[bold]logs[/]      {stack.server.home.server_log}, of Spark runs: {stack.server.home.emr}/*/stdout

[bold]Enqueue with the AWS CLI[/]

export AWS_ENDPOINT_URL={stack.state.endpoint} AWS_REGION={REGION}
export AWS_ACCESS_KEY_ID={stack.state.key} AWS_SECRET_ACCESS_KEY={stack.state.secret}
{trust}echo '{{"to": "ada@example.com", "subject": "Hello"}}' | aws s3 cp - s3://{stack.bucket}/{queue}/messages/hello.json
aws s3 ls --recursive s3://{stack.bucket}/{queue}/

[bold]or with boto3[/]

s3 = boto3.client("s3", endpoint_url="{stack.state.endpoint}", region_name="{REGION}",
                  aws_access_key_id="{stack.state.key}", aws_secret_access_key="{stack.state.secret}"{verify})
s3.put_object(Bucket="{stack.bucket}", Key="{queue}/messages/p200/urgent.json",
              Body=b'{{"to": "ada@example.com", "subject": "Urgent"}}')
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
