"""A Lambda function as s3queue deploys it: packaged once, with a log group and a role of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from s3queue.deployment import Deployment

from ..options import Options
from ..packaging.platforms import Platform
from .queue_bucket import customer_key, write_logs

#: Also the CloudWatch namespace of the functions' own metrics.
SERVICE = "s3queue"
LOGS_KEPT = logs.RetentionDays.TWO_WEEKS


class QueueFunction(Construct):
    """One function whose role starts with nothing but its own log group, and its traces if they are switched on."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        handler: str,
        code: lambda_.Code,
        deployment: Deployment,
        statements: Sequence[iam.PolicyStatement],
        timeout: Duration,
        memory_mib: int,
        concurrency: int,
        options: Options,
        description: str,
        environment: Mapping[str, str] | None = None,
        sends: bool = False,
    ) -> None:
        super().__init__(scope, id)
        self.name = name
        self.log_group = logs.LogGroup(
            self,
            "Logs",
            log_group_name=f"/aws/lambda/{name}",
            encryption_key=customer_key(self, options),
            retention=LOGS_KEPT,
            removal_policy=RemovalPolicy.DESTROY,
        )
        self.role = iam.Role(
            self, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"), description=f"Runs {name}"
        )
        for statement in (write_logs(self.log_group), *statements):
            self.role.add_to_policy(statement)
        built_for = Platform.of(options.target)
        self.function = lambda_.Function(
            self,
            "Function",
            # Named, because a function cannot be told its own generated name: Deployment.workers would be a cycle.
            function_name=name,
            description=description,
            runtime=built_for.runtime,
            architecture=built_for.lambda_architecture,
            handler=handler,
            code=code,
            role=self.role,
            environment={
                **(environment or {}),
                **deployment.to_env(),
                "S3QUEUE_STORE": "direct" if options.direct_store else "boto3",
                "S3QUEUE_METRICS": options.metrics,
                "POWERTOOLS_SERVICE_NAME": SERVICE,
                "POWERTOOLS_METRICS_NAMESPACE": SERVICE,
            },
            timeout=timeout,
            memory_size=memory_mib,
            reserved_concurrent_executions=concurrency if options.reserved_concurrency else None,
            # What a handler enqueues wakes a function: Lambda would stop a chain that comes back to this one after 16
            # messages, without a word.
            recursive_loop=lambda_.RecursiveLoop.ALLOW if sends else lambda_.RecursiveLoop.TERMINATE,
            tracing=lambda_.Tracing.ACTIVE if options.tracing else lambda_.Tracing.DISABLED,
            log_group=self.log_group,
        )
