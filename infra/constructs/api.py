"""The API: one function for all queues behind a URL that asks for an IAM signature."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.options import Options
from infra.permissions import api_statements
from s3queue.settings import Deployment

from .functions import QueueFunction
from .s3_queue import S3Queue

#: A replay of 500 dead letters is its longest work.
TIMEOUT = Duration.seconds(60)
MEMORY_MIB = 512
#: A page asks for a handful of things at once.
CONCURRENCY = 3


class Api(Construct):
    """Reads what operators look at and writes what they decide; it can neither claim nor finish a message.

    Who may call it is the caller's own policy: lambda:InvokeFunctionUrl and lambda:InvokeFunction on this function.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        queues: Mapping[str, S3Queue],
        bucket: s3.IBucket,
        code: lambda_.Code,
        options: Options,
    ) -> None:
        super().__init__(scope, id)
        self.function = QueueFunction(
            self,
            "Api",
            # With an underscore, or a queue called api would want the same name.
            name=f"{Stack.of(self).stack_name}_api",
            description="The REST API and the dashboard",
            handler="handlers.api.handle",
            code=code,
            deployment=Deployment(
                bucket=bucket.bucket_name, workers={name: queue.worker.name for name, queue in queues.items()}
            ),
            statements=api_statements(bucket, list(queues)),
            timeout=TIMEOUT,
            memory_mib=MEMORY_MIB,
            concurrency=CONCURRENCY,
            options=options,
        ).function
        self.url = self.function.add_function_url(auth_type=lambda_.FunctionUrlAuthType.AWS_IAM)
        CfnOutput(self, "Url", value=self.url.url)
