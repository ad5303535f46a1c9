"""Spark runs: an EMR Serverless application in a stack of its own, and beside the queues what its runs may do.

Two stacks, because an emulator knows no EMR Serverless, and because nothing in the application depends on the bucket:
the queues' stack takes the application's id, which is made up where the application is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aws_cdk import ArnFormat, CfnDeletionPolicy, CfnOutput, Fn, RemovalPolicy, Stack
from aws_cdk import aws_emrserverless as emr
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from ..options import Options
from ..packaging.spark_code import ENTRY_POINT, PIPELINE, code_zip, packages_tar
from ..permissions import SPARK_LOGS_PREFIX, job_statements
from .functions import LOGS_KEPT

#: Spark 4.1.1, Python 3.11, arm64; supported until September 2029.
RELEASE = "emr-spark-8.1.0"
#: An account has 16 vCPU to begin with.
MAX_CPU, MAX_MEMORY, MAX_DISK = "16 vCPU", "64 GB", "200 GB"
#: Idle workers are paid for: what starts again within this time starts sooner, what does not costs nothing.
IDLE_MINUTES = 5
MAX_CONCURRENT_RUNS = 5
QUEUE_TIMEOUT_MINUTES = 60
SERVICE = "emr-serverless.amazonaws.com"
APPLICATION_NAME_LIMIT = 64
OUTPUT = "ApplicationId"


class SparkStack(Stack):
    """The application: starts by itself, stops when idle, and never grows beyond what an account has.

    CloudFormation cannot update an application that is started: it sends all properties again, and EMR refuses most of
    them then. So a change makes another application: its name, which CloudFormation never changes, ends with a hash of
    the other properties. The old one stays: its runs go on, and once stopped it costs nothing.
    """

    def __init__(self, scope: Construct, id: str, **stack: Any) -> None:
        super().__init__(scope, id, **stack)
        properties: dict[str, Any] = {
            "release_label": RELEASE,
            "type": "Spark",
            "architecture": "ARM64",
            "auto_start_configuration": {"enabled": True},
            "auto_stop_configuration": {"enabled": True, "idleTimeoutMinutes": IDLE_MINUTES},
            "maximum_capacity": {"cpu": MAX_CPU, "memory": MAX_MEMORY, "disk": MAX_DISK},
            "scheduler_configuration": {
                "maxConcurrentRuns": MAX_CONCURRENT_RUNS,
                "queueTimeoutMinutes": QUEUE_TIMEOUT_MINUTES,
            },
        }
        digest = hashlib.sha256(json.dumps(properties, sort_keys=True).encode()).hexdigest()[:8]
        name = f"{self.stack_name[: APPLICATION_NAME_LIMIT - 9]}-{digest}"
        self.application = emr.CfnApplication(self, "Application", name=name, **properties)
        self.application.cfn_options.update_replace_policy = CfnDeletionPolicy.RETAIN
        self.application.cfn_options.deletion_policy = CfnDeletionPolicy.DELETE
        CfnOutput(self, OUTPUT, value=self.application.ref)

    @property
    def application_id(self) -> str:
        """For another stack. Not an export: CloudFormation refuses to change one that is in use."""
        return Fn.get_stack_output(self.stack_name, OUTPUT)


@dataclass(frozen=True, slots=True)
class SparkCode:
    """What runs execute, as files; `packages` None: the machine that runs them has its own."""

    entry_point: str
    pipeline: str
    code: str
    packages: str | None

    @classmethod
    def build(cls, options: Options) -> SparkCode:
        packages = str(packages_tar()) if options.target == "aws" else None
        return cls(str(ENTRY_POINT), str(PIPELINE), str(code_zip()), packages)


class SparkRuns(Construct):
    """What runs execute, a role that can touch this bucket only, and the right to start runs with that role."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        application: str,
        queues: Mapping[str, Sequence[str]],
        bucket: s3.IBucket,
        code: SparkCode,
        flows: Sequence[str] = (),
    ) -> None:
        super().__init__(scope, id)
        stack = Stack.of(self)
        self.queues = tuple(queues)
        self.application = application
        self._bucket = bucket
        self._arn = stack.format_arn(service="emr-serverless", resource="", resource_name=f"applications/{application}")
        self.entry_point = assets.Asset(self, "EntryPoint", path=code.entry_point)
        self.pipeline = assets.Asset(self, "PipelineEntryPoint", path=code.pipeline)
        self.code = assets.Asset(self, "Code", path=code.code)
        self.packages = assets.Asset(self, "Packages", path=code.packages) if code.packages else None
        self.log_group = logs.LogGroup(
            self,
            "Logs",
            log_group_name=f"/s3queue/{stack.stack_name}/spark",
            encryption_key=bucket.encryption_key,
            retention=LOGS_KEPT,
            removal_policy=RemovalPolicy.DESTROY,
        )
        self.role = self.job_role(
            self, "JobRole", "Runs the heavy messages of this bucket", job_statements(bucket, queues, flows=flows)
        )

    def job_role(
        self, scope: Construct, id: str, description: str, statements: Sequence[iam.PolicyStatement]
    ) -> iam.Role:
        """A role for runs of this application: what its jobs do, and what every run needs."""
        role = iam.Role(
            scope,
            id,
            description=description,
            assumed_by=iam.ServicePrincipal(
                SERVICE,
                # Nobody else's application can be given this role.
                conditions={
                    "StringEquals": {"aws:SourceAccount": Stack.of(self).account},
                    "ArnLike": {"aws:SourceArn": self._arn},
                },
            ),
        )
        for statement in (*statements, *self._read_code(), *self._write_logs()):
            role.add_to_policy(statement)
        return role

    def environment(self, *, role: iam.IRole | None = None, entry_point: assets.Asset | None = None) -> dict[str, str]:
        """What a launcher has to know, as fields of `Deployment`; of heavy messages unless told otherwise."""
        return {
            "spark_application": self.application,
            "spark_role": (role or self.role).role_arn,
            "spark_entry_point": (entry_point or self.entry_point).s3_object_url,
            "spark_code": self.code.s3_object_url,
            "spark_packages": self.packages.s3_object_url if self.packages else "",
            "spark_logs": f"s3://{self._bucket.bucket_name}/{SPARK_LOGS_PREFIX}",
            "spark_log_group": self.log_group.log_group_name,
            "spark_region": Stack.of(self).region,
        }

    def launch_statements(self) -> list[iam.PolicyStatement]:
        """Start and look after runs of this application, with the role of heavy messages."""
        return [
            *self.start_statements(self.role),
            iam.PolicyStatement(actions=["emr-serverless:ListJobRuns"], resources=[self._arn]),
            iam.PolicyStatement(
                actions=["emr-serverless:GetJobRun", "emr-serverless:CancelJobRun"],
                resources=[f"{self._arn}/jobruns/*"],
            ),
        ]

    def start_statements(self, role: iam.IRole) -> list[iam.PolicyStatement]:
        """Start runs of this application with this role and no other."""
        return [
            iam.PolicyStatement(actions=["emr-serverless:StartJobRun"], resources=[self._arn]),
            iam.PolicyStatement(actions=["emr-serverless:TagResource"], resources=[f"{self._arn}/jobruns/*"]),
            iam.PolicyStatement(
                actions=["iam:PassRole"],
                resources=[role.role_arn],
                conditions={"StringEquals": {"iam:PassedToService": SERVICE}},
            ),
        ]

    def tell(self, scope: Construct, function: lambda_.IFunction) -> events.Rule:
        """Let a function know how runs end; best effort, as EventBridge says: the sweeper asks by itself, too."""
        from aws_cdk import aws_events_targets as targets

        return events.Rule(
            scope,
            "RunEnded",
            description="Tells the sweeper of Spark runs that ended",
            event_pattern=self.ended("SUCCESS", "FAILED", "CANCELLED"),
            targets=[targets.LambdaFunction(function)],
        )

    def ended(self, *states: str) -> events.EventPattern:
        """Runs of this application that came to one of these states. The event names neither job nor tags."""
        return events.EventPattern(
            source=["aws.emr-serverless"],
            detail_type=["EMR Serverless Job Run State Change"],
            detail={"applicationId": [self.application], "state": list(states)},
        )

    def _read_code(self) -> list[iam.PolicyStatement]:
        found = [asset for asset in (self.entry_point, self.pipeline, self.code, self.packages) if asset]
        arns = [asset.bucket.arn_for_objects(asset.s3_object_key) for asset in found]
        return [iam.PolicyStatement(actions=["s3:GetObject"], resources=arns)]

    def _write_logs(self) -> list[iam.PolicyStatement]:
        return [
            iam.PolicyStatement(
                actions=["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
                resources=[self.log_group.log_group_arn],
            ),
            # EMR looks for the group by listing them, which cannot be allowed for a single one.
            iam.PolicyStatement(
                actions=["logs:DescribeLogGroups"],
                resources=[
                    Stack.of(self).format_arn(
                        service="logs",
                        resource="log-group",
                        resource_name="*",
                        arn_format=ArnFormat.COLON_RESOURCE_NAME,
                    )
                ],
            ),
        ]
