"""QueueStack: the bucket, a worker per queue, the sweeper, the API, alarms and dashboard."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aws_cdk import Annotations, CfnOutput, CfnResource, RemovalPolicy, Stack
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from s3queue.settings import QueueSettings

from .constructs import api, sweeper
from .constructs.functions import LOGS_KEPT
from .constructs.monitoring import Monitoring
from .constructs.pipeline import Pipeline
from .constructs.queue_bucket import QueueBucket
from .constructs.s3_queue import S3Queue
from .constructs.spark_runs import SparkCode, SparkRuns
from .options import Options
from .permissions import key_statements

#: Names of variables whose value nobody should read in a template.
SECRET = re.compile("PASSWORD|SECRET|TOKEN|PRIVATE|CREDENTIAL")


class Definition(Protocol):
    """What a module in `functions/queues` defines."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> QueueSettings: ...


class QueueStack(Stack):
    """One bucket and every queue in it: S3 keeps one notification configuration per bucket, so it has one owner."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        queues: Mapping[str, Definition],
        code: lambda_.Code,
        options: Options,
        sends_to: Mapping[str, Sequence[str]] | None = None,
        environment: Mapping[str, Mapping[str, str]] | None = None,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        spark_application: str = "",
        spark_code: SparkCode | None = None,
        **stack: Any,
    ) -> None:
        super().__init__(scope, id, **stack)
        self.options = options
        settings = {name: queues[name].settings for name in sorted(queues)}
        self.storage = QueueBucket(self, "Storage", queues=settings, options=options)
        #: None: heavy messages wait, unclaimed.
        self.spark_runs = self._spark_runs(settings, spark_application, spark_code)
        self.pipeline = self._pipeline(self.spark_runs, list(settings)) if self.spark_runs else None
        self.queues = {
            name: S3Queue(
                self,
                f"Queue-{name}",
                queue=name,
                settings=of,
                storage=self.storage,
                code=code,
                options=options,
                sends_to=(sends_to or {}).get(name, ()),
                environment=(environment or {}).get(name),
                secrets=(secrets or {}).get(name),
                spark_runs=self.spark_runs,
            )
            for name, of in settings.items()
        }
        self.sweeper = sweeper.Sweeper(
            self,
            "Sweep",
            queues=self.queues,
            bucket=self.storage.bucket,
            code=code,
            options=options,
            spark_runs=self.spark_runs,
        )
        self.storage.tell_of_failures(self.sweeper.function)
        self.api = api.Api(self, "Api", queues=self.queues, bucket=self.storage.bucket, code=code, options=options)
        self.monitoring = Monitoring(
            self,
            "Monitoring",
            queues=self.queues,
            sweeper=self.sweeper.function,
            metrics=options.metrics,
            pipeline=self.pipeline,
            key=self.storage.key,
        )
        self._own_cdks_log_groups()
        self._warn_of_secrets(environment or {})
        self._say_what_concurrency_costs(settings, options)
        CfnOutput(self, "Bucket", value=self.storage.bucket.bucket_name)
        CfnOutput(self, "FailedEvents", value=self.storage.failed_events.bucket_name)
        if options.kms_key:
            policy = self.to_json_string(key_statements(self))
            CfnOutput(self, "KeyPolicy", value=policy, description="Statements that the key's own policy needs")

    def _spark_runs(
        self, settings: Mapping[str, QueueSettings], application: str, code: SparkCode | None
    ) -> SparkRuns | None:
        heavy = [name for name, of in settings.items() if of.uses_spark]
        if not ((heavy or self.options.schedule_pipeline) and application and code):
            return None
        return SparkRuns(self, "Spark", application=application, queues=heavy, bucket=self.storage.bucket, code=code)

    def _pipeline(self, spark_runs: SparkRuns, queues: Sequence[str]) -> Pipeline:
        return Pipeline(
            self,
            "Pipeline",
            spark_runs=spark_runs,
            queues=queues,
            bucket=self.storage.bucket,
            scheduled=self.options.schedule_pipeline,
        )

    def _own_cdks_log_groups(self) -> None:
        # The handlers of CDK's own custom resources log to groups that Lambda makes when they first run, without an
        # end date, and that `cdk destroy` leaves behind.
        log_group = logs.LogGroup(
            self,
            "CustomResourceLogs",
            retention=LOGS_KEPT,
            removal_policy=RemovalPolicy.DESTROY,
            encryption_key=self.storage.key,
        )
        for resource in self.node.find_all():
            if isinstance(resource, lambda_.CfnFunction) or not CfnResource.is_cfn_resource(resource):
                continue
            assert isinstance(resource, CfnResource)
            if resource.cfn_resource_type == "AWS::Lambda::Function":
                resource.add_property_override("LoggingConfig", {"LogGroup": log_group.log_group_name})
        self.storage.let_notifications_log(log_group)

    def _warn_of_secrets(self, environment: Mapping[str, Mapping[str, str]]) -> None:
        for queue, variables in environment.items() if self.options.target == "aws" else ():
            for name in variables:
                if SECRET.search(name):
                    Annotations.of(self.queues[queue]).add_warning(
                        f"{name} goes into the function's configuration, for everyone to read who sees the function. "
                        "Name it in the module's SECRETS instead, and read it with queues.secret."
                    )

    def _say_what_concurrency_costs(self, settings: Mapping[str, QueueSettings], options: Options) -> None:
        if options.reserved_concurrency:
            reserved = sum(of.concurrency for of in settings.values()) + sweeper.CONCURRENCY + 2 * api.CONCURRENCY
            Annotations.of(self).add_info(
                f"This stack reserves {reserved} concurrent executions. Lambda keeps 100 of an account's limit "
                "unreserved; a new account has 10 in all: deploy it with -c reserved_concurrency=false."
            )
        else:
            Annotations.of(self).add_info(
                "reserved_concurrency=false: nothing bounds a queue's parallelism but the account's limit, which all "
                "queues and the sweeper share: `concurrency` is not enforced, a burst in one queue delays the others, "
                "and what is throttled drains late, in priority order, at one LIST (5 $ per million) per page instead "
                "of none. Ask for a higher limit (free) and leave this flag out."
            )
