"""QueueStack: the bucket, a worker per queue, the sweeper, the API, alarms and dashboard."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from aws_cdk import Annotations, CfnOutput, CfnResource, NestedStack, RemovalPolicy, Stack, Stage, Validations
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from constructs import Construct

from s3queue.deployment import FAILED_INVOCATIONS
from s3queue.settings import QueueSettings

from .constructs import api, sweeper
from .constructs.archive_table import ArchiveTable
from .constructs.functions import LOGS_KEPT
from .constructs.monitoring import Monitoring
from .constructs.pipeline import Pipeline
from .constructs.queue_bucket import MAX_PROMPT_QUEUES, QueueBucket
from .constructs.s3_queue import S3Queue
from .constructs.spark_runs import SparkCode, SparkRuns
from .options import Options
from .packaging.spark_code import check_memory
from .quotas import Quotas
from .resource_policies import key_statements

#: Names of variables whose value nobody should read in a template.
SECRET = re.compile("PASSWORD|SECRET|TOKEN|PRIVATE|CREDENTIAL")


class Definition(Protocol):
    """What a module in `functions/queues` defines."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> QueueSettings: ...

    @property
    def sends_to(self) -> Sequence[str]: ...

    @property
    def flows(self) -> bool: ...


class QueueStack(Stack):
    """One bucket and every queue in it: S3 keeps one notification configuration per bucket, so it has one owner.

    Every queue is a nested stack of its own: a stack has 500 resources, and a queue needs a dozen. One for each, so
    that a queue stays where it is when others come and go: CloudFormation makes a function in its new stack before it
    removes it from the old one, and two cannot have the same name.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        queues: Mapping[str, Definition],
        code: lambda_.Code,
        options: Options,
        environment: Mapping[str, Mapping[str, str]] | None = None,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        spark_application: str = "",
        spark_code: SparkCode | None = None,
        bucket: str = "",
        **stack: Any,
    ) -> None:
        # A template has 1 MB, and with a hundred queues a third of it would be white space.
        super().__init__(scope, id, suppress_template_indentation=True, **stack)
        self.options = options
        settings = {name: queues[name].settings for name in sorted(queues)}
        sends_to = {name: _targets(name, queues) for name in settings}
        self.node.set_context("@aws-cdk/aws-iam.arnSizeEstimate", arn_size(self.stack_name, settings))
        self.storage = QueueBucket(
            self,
            "Storage",
            queues=settings,
            sending={name for name in settings if sends_to[name]},
            options=options,
            has_flows=any(queue.flows for queue in queues.values()),
            existing=bucket,
        )
        #: None: heavy messages wait, unclaimed.
        flows = [name for name in settings if queues[name].flows]
        self.spark_runs = self._spark_runs(settings, sends_to, flows, spark_application, spark_code)
        self.pipeline = self._pipeline(self.spark_runs, list(settings)) if self.spark_runs else None
        uploaded = self._uploaded(code)
        self.queues = {
            name: S3Queue(
                self._nested(name),
                "Queue",
                queue=name,
                settings=of,
                storage=self.storage,
                code=uploaded,
                options=options,
                sends_to=sends_to[name],
                flows=queues[name].flows,
                environment=(environment or {}).get(name),
                secrets=(secrets or {}).get(name),
                spark_runs=self.spark_runs,
            )
            for name, of in settings.items()
        }
        self.sweepers = self._sweepers(code)
        self.api = api.Api(
            self,
            "Api",
            queues=self.queues,
            bucket=self.storage.bucket,
            code=code,
            options=options,
            spark_log_group=self.spark_runs.log_group.log_group_name if self.spark_runs else "",
        )
        self.monitoring = Monitoring(
            self,
            "Monitoring",
            queues=self.queues,
            sweepers=[one.function for one in self.sweepers],
            metrics=options.metrics,
            pipeline=self.pipeline,
            key=self.storage.key,
        )
        if options.athena:
            ArchiveTable(self, "Archive", bucket=self.storage.bucket)
        self._own_cdks_log_groups()
        self._warn_of_secrets(environment or {})
        self._warn_of_events(settings)
        self._say_what_concurrency_costs(settings, options)
        CfnOutput(self, "Bucket", value=self.storage.bucket.bucket_name)
        CfnOutput(self, "FailedEvents", value=self.storage.failed_events.bucket_name)
        # Here, not in each queue's own stack: who deploys looks at this one.
        for name, queue in self.queues.items():
            producers = Construct(self, f"Producers-{name}")
            CfnOutput(producers, "ProducerPolicy", value=queue.producer_policy.managed_policy_arn)
        if options.kms_key:
            policy = self.to_json_string(key_statements(self))
            CfnOutput(self, "KeyPolicy", value=policy, description="Statements that the key's own policy needs")
        if bucket:
            policy = self.to_json_string([one.to_statement_json() for one in self.storage.statements])
            CfnOutput(self, "BucketPolicy", value=policy, description="Statements that the bucket's policy needs")
        Validations.of(Stage.of(self) or self).add_plugins(Quotas(self.template_file))

    def functions(self) -> list[lambda_.Function]:
        """Every function that runs our code."""
        workers = [queue.worker.function for queue in self.queues.values() if queue.worker]
        return [*workers, *(one.function for one in self.sweepers), self.api.function, self.api.reader]

    def _nested(self, queue: str) -> NestedStack:
        stack = NestedStack(self, f"Queue-{queue}", description=f"s3queue: the queue {queue}")
        resource = stack.nested_stack_resource
        assert resource
        # CDK's own name has the queue's twice, and everything in here that refers to it repeats it.
        letters = "".join(filter(str.isalnum, queue))
        resource.override_logical_id(f"Queue{letters}{hashlib.sha256(queue.encode()).hexdigest()[:8].upper()}")
        return stack

    def _uploaded(self, code: lambda_.Code) -> lambda_.Code:
        """The same code for functions in nested stacks: an asset belongs to one stack, its place in S3 to nobody."""
        location = code.bind(self).s3_location
        if location is None:
            return code
        bucket = s3.Bucket.from_bucket_name(self, "CodeBucket", location.bucket_name)
        Annotations.of(bucket).acknowledge_warning(
            "@aws-cdk/aws-lambda:codeFromBucketObjectVersionNotSpecified", "An asset's key is a hash of what it holds."
        )
        return lambda_.Code.from_bucket(bucket, location.object_key, location.object_version)

    def _sweepers(self, code: lambda_.Code) -> list[sweeper.Sweeper]:
        shares = sweeper.shares(list(self.queues))
        made = []
        for number, names in enumerate(shares, 1):
            one = sweeper.Sweeper(
                self,
                "Sweep" if number == 1 else f"Sweep{number}",
                queues={name: self.queues[name] for name in names},
                bucket=self.storage.bucket,
                code=code,
                options=self.options,
                number=number,
                spark_runs=self.spark_runs,
                # One of them, also if none of its own queues has runs or events.
                publishes_runs=number == 1 and any(one.settings.events != "off" for one in self.queues.values()),
            )
            # S3 takes no two rules for one prefix, so each of several sweepers has those of its own queues.
            own = [self.queues[name].failures_prefix for name in names if self.queues[name].worker]
            self.storage.tell_of_failures(one.function, own if len(shares) > 1 else [FAILED_INVOCATIONS])
            if len(self.queues) <= MAX_PROMPT_QUEUES:
                self.storage.tell_of_delays(one.function, names)
            made.append(one)
        if len(self.queues) > MAX_PROMPT_QUEUES:
            Annotations.of(self).add_info(
                f"With more than {MAX_PROMPT_QUEUES} queues, S3 has no notification rule left for delayed messages: a "
                "delay of less than a minute may be up to a minute late. Two installations would have enough."
            )
        return made

    def _spark_runs(
        self,
        settings: Mapping[str, QueueSettings],
        sends_to: Mapping[str, Sequence[str]],
        flows: Sequence[str],
        application: str,
        code: SparkCode | None,
    ) -> SparkRuns | None:
        heavy = {name: sends_to[name] for name, of in settings.items() if of.uses_spark}
        if not ((heavy or self.options.schedule_pipeline) and application and code):
            return None
        check_memory({name: settings[name] for name in heavy})
        return SparkRuns(
            self,
            "Spark",
            application=application,
            queues=heavy,
            bucket=self.storage.bucket,
            code=code,
            flows=[name for name in flows if name in heavy],
        )

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
                        "Name it in the module's SECRETS instead, and read it with s3queue.secret."
                    )

    def _warn_of_events(self, settings: Mapping[str, QueueSettings]) -> None:
        """What a pull worker or a Spark run tells of, only the hooks in its process hear."""
        for queue, of in settings.items():
            if of.events != "off" and of.runs_elsewhere:
                where = "pull workers" if of.engine == "pull" else "Spark runs"
                Annotations.of(self.queues[queue]).add_warning_v2(
                    f"s3queue:events-{queue}",
                    f"{queue}: its {where} publish nothing to EventBridge, although events={of.events!r}: only what "
                    "its functions do is published. Hooks in the queue's module hear the rest.",
                )

    def _say_what_concurrency_costs(self, settings: Mapping[str, QueueSettings], options: Options) -> None:
        if options.reserved_concurrency:
            workers = sum(of.concurrency for of in settings.values() if of.engine != "pull")
            sweepers = len(self.sweepers)
            reserved = workers + sweepers * sweeper.CONCURRENCY + 2 * api.CONCURRENCY
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


def _targets(name: str, queues: Mapping[str, Definition]) -> Sequence[str]:
    """The queues that a handler sends to.

    Raises:
        ValueError: one of them is not in this stack.
    """
    targets = queues[name].sends_to
    for target in targets:
        if target not in queues:
            raise ValueError(
                f"queue {name!r}: sends_to names {target!r}, which this stack does not have; it has "
                f"{', '.join(sorted(queues))}"
            )
    return targets


def arn_size(stack: str, queues: Iterable[str]) -> int:
    """Characters of the longest ARN in a policy.

    CDK divides a role's policy by it, and by 150 unless told otherwise: that would make twice as many policies as are
    needed, and a role has ten. infra/quotas.py checks what comes of it.
    """
    bucket = min(63, len(f"{stack}-storagebucket12345678-1234567890123"))
    return len("arn:aws:s3:::") + bucket + max(map(len, queues), default=0) + len('"//idempotency/*",')
