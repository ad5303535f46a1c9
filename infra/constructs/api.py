"""The API: for operators and for readers a function each, behind a URL that asks for an IAM signature.

IAM decides who may call a function URL, and knows nothing of the request: neither its method nor its path can be a
condition. So what a caller may do is which of the two functions it may call, and each function's role ends there.
"""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from constructs import Construct

from s3queue.deployment import Deployment

from ..options import Options
from ..permissions import api_statements
from .functions import QueueFunction
from .s3_queue import S3Queue

#: A replay of 500 dead letters is its longest work.
TIMEOUT = Duration.seconds(60)
MEMORY_MIB = 512
#: A page asks for a handful of things at once. Each of the two functions has as many.
CONCURRENCY = 3


class Api(Construct):
    """Reads what operators look at and writes what they decide; it can neither claim nor finish a message.

    Who may call it is the caller's own policy: attach `operator_policy` or `reader_policy`, or write one like it.
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
        spark_log_group: str = "",
    ) -> None:
        super().__init__(scope, id)
        self._bucket, self._code, self._options = bucket, code, options
        #: Only named: the page links to it, and AWS decides who may read it.
        self._spark_log_group = spark_log_group
        self._has_flows = any(queue.flows for queue in queues.values())
        self._workers = {name: queue.worker_name for name, queue in queues.items()}
        # With an underscore, or a queue called api would want the same name.
        name = f"{Stack.of(self).stack_name}_api"
        self.function = self._function("Api", name, "The REST API and the dashboard", "handle", changes=True)
        self.url = self.function.add_function_url(auth_type=lambda_.FunctionUrlAuthType.AWS_IAM)
        self.operator_policy = self._policy("Operator", self.function, "May look at, replay, pause and enqueue")
        CfnOutput(self, "Url", value=self.url.url)
        CfnOutput(self, "OperatorPolicy", value=self.operator_policy.managed_policy_arn)
        self.reader = self._function(
            "Reader", f"{name}_reader", "The REST API and the dashboard, for readers", "read", changes=False
        )
        self.reader_url = self.reader.add_function_url(auth_type=lambda_.FunctionUrlAuthType.AWS_IAM)
        self.reader_policy = self._policy("Readers", self.reader, "May look, and see no payload")
        CfnOutput(self, "ReaderUrl", value=self.reader_url.url)
        CfnOutput(self, "ReaderPolicy", value=self.reader_policy.managed_policy_arn)

    def _function(self, id: str, name: str, description: str, handler: str, *, changes: bool) -> lambda_.Function:
        return QueueFunction(
            self,
            id,
            name=name,
            description=description,
            handler=f"handlers.api.{handler}",
            code=self._code,
            deployment=Deployment(
                bucket=self._bucket.bucket_name, workers=self._workers, spark_log_group=self._spark_log_group
            ),
            statements=api_statements(self._bucket, list(self._workers), changes=changes, flows=self._has_flows),
            timeout=TIMEOUT,
            memory_mib=MEMORY_MIB,
            concurrency=CONCURRENCY,
            options=self._options,
        ).function

    def _policy(self, id: str, function: lambda_.Function, description: str) -> iam.ManagedPolicy:
        """What a person or a program needs to call it: nobody is let in by default."""
        by_url = iam.PolicyStatement(
            actions=["lambda:InvokeFunctionUrl"],
            resources=[function.function_arn],
            conditions={"StringEquals": {"lambda:FunctionUrlAuthType": "AWS_IAM"}},
        )
        # New URLs ask for both; without the condition it would be called with an event of the caller's making.
        invoked = iam.PolicyStatement(
            actions=["lambda:InvokeFunction"],
            resources=[function.function_arn],
            conditions={"Bool": {"lambda:InvokedViaFunctionUrl": "true"}},
        )
        return iam.ManagedPolicy(self, id, description=description, statements=[by_url, invoked])
