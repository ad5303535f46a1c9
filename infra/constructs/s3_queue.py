"""S3Queue: everything that one queue adds to the stack."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import jsii
from aws_cdk import ArnFormat, Duration, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_notifications as notifications
from constructs import Construct

from s3queue.deployment import FAILED_INVOCATIONS, Deployment
from s3queue.errors import InvalidRequest
from s3queue.keys import Keys
from s3queue.settings import QueueSettings
from s3queue.worker.secrets import VARIABLE, Reference

from ..options import Options
from ..permissions import create_only_statements, producer_statement, use_key, worker_statements
from .functions import QueueFunction
from .queue_bucket import QueueBucket
from .spark_runs import SparkRuns

FUNCTION_NAME_LIMIT = 64
DEFAULT_BUS = "default"


class S3Queue(Construct):
    """One queue's worker function, the event filter that wakes it, its role, its log group and its producers' policy.

    A queue with `engine="pull"` has only the policy: its workers run elsewhere.

    The role reaches this queue's prefix and, to enqueue, the queues in `sends_to`; nothing else in the bucket. Lambda's
    recursion detection is off only if there are any.
    `environment` is what the queue's own handler reads; `secrets` are the names and references of what it reads at run
    time, and its role may read exactly those.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        queue: str,
        settings: QueueSettings,
        storage: QueueBucket,
        code: lambda_.Code,
        options: Options,
        sends_to: Sequence[str] = (),
        flows: bool = False,
        environment: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        spark_runs: SparkRuns | None = None,
    ) -> None:
        super().__init__(scope, id)
        spark_runs = spark_runs if spark_runs and queue in spark_runs.queues else None
        self.queue, self.settings, self.sends_to, self.flows = queue, settings, tuple(sends_to), flows
        # The stack of the bucket: this construct may be in a nested one, whose name nobody knows yet.
        name = worker_name(Stack.of(storage).stack_name, queue)
        self.failures_prefix = f"{FAILED_INVOCATIONS}{name}/"
        self._bucket = storage.bucket
        self.producer_policy = iam.ManagedPolicy(
            self,
            "Producer",
            description=f"May enqueue to {queue}, now or later, and nothing else",
            statements=self._producer(create_only=options.create_only_producers),
        )
        #: None: pull workers alone run its messages, and no event is routed.
        self.worker: QueueFunction | None = None
        if settings.engine == "pull":
            return
        publishes = settings.events != "off"
        self.worker = QueueFunction(
            self,
            "Worker",
            name=name,
            description=f"Runs the messages of {queue}",
            handler="handlers.worker.handle",
            code=code,
            deployment=Deployment(
                bucket=storage.bucket.bucket_name,
                queue=queue,
                workers={queue: name},
                event_bus=DEFAULT_BUS if publishes else "",
                **(spark_runs.environment() if spark_runs else {}),
            ),
            statements=[
                *worker_statements(
                    storage.bucket, queue, sends_to=sends_to, launches=spark_runs is not None, flows=flows
                ),
                *(spark_runs.launch_statements() if spark_runs else []),
                *_leave_failures(storage.failed_events, self.failures_prefix),
                *([put_events(self)] if publishes else []),
                *(read_secrets(self, secrets.values(), storage.key) if secrets else []),
            ],
            timeout=function_timeout(queue, settings),
            memory_mib=settings.memory_mib,
            concurrency=settings.concurrency,
            options=options,
            environment={**(environment or {}), **({VARIABLE: json.dumps(dict(secrets))} if secrets else {})},
            sends=bool(sends_to),
        )
        function = self.worker.function
        function.configure_async_invoke(
            # The protocol retries, with its own backoff and its own count of attempts.
            retry_attempts=0,
            max_event_age=Duration.hours(6),
            on_failure=_Bucket(storage.failed_events),
        )
        storage.bucket.add_event_notification(
            s3.EventType.OBJECT_CREATED,
            notifications.LambdaDestination(function),
            s3.NotificationKeyFilter(prefix=Keys(queue).prefix("messages")),
        )

    @property
    def worker_name(self) -> str:
        """Of its function; empty if it has none."""
        return self.worker.name if self.worker else ""

    def grant_enqueue(self, grantee: iam.IGrantable, *, create_only: bool = False) -> None:
        """Let a role of another construct enqueue here; with `create_only`, never over a message that waits."""
        for statement in self._producer(create_only=create_only):
            grantee.grant_principal.add_to_principal_policy(statement)

    def _producer(self, *, create_only: bool) -> list[iam.PolicyStatement]:
        if create_only:
            return [*create_only_statements(self._bucket, self.queue), *use_key(self._bucket)]
        return [producer_statement(self._bucket, self.queue), *use_key(self._bucket)]


def worker_name(stack_name: str, queue: str) -> str:
    """The worker function's name, known before it exists.

    Raises:
        ValueError: longer than Lambda takes.
    """
    name = f"{stack_name}-{queue}"
    if len(name) > FUNCTION_NAME_LIMIT:
        raise ValueError(f"queue {queue!r}: its function would be called {name!r}, and Lambda takes 64 characters")
    return name


def function_timeout(queue: str, settings: QueueSettings) -> Duration:
    """Room for one handler after the drain has begun, and for writing down how it ended.

    Raises:
        ValueError: settings that cannot be kept, with what to change.
    """
    try:
        settings.check_function()
    except InvalidRequest as error:
        raise ValueError(f"queue {queue!r}: {error}") from None
    return Duration.seconds(int(settings.function_timeout.total_seconds()))


def put_events(scope: Construct) -> iam.PolicyStatement:
    """To the account's default bus."""
    bus = Stack.of(scope).format_arn(service="events", resource="event-bus", resource_name=DEFAULT_BUS)
    return iam.PolicyStatement(actions=["events:PutEvents"], resources=[bus])


def read_secrets(scope: Construct, references: Iterable[str], key: kms.IKey | None) -> list[iam.PolicyStatement]:
    """Exactly these; with a key of the customer's, which they may be encrypted with, as far as they are."""
    stack, arns = Stack.of(scope), defaultdict[str, list[str]](list)
    for one in map(Reference.parse, references):
        if one.service == "ssm":
            arns["ssm:GetParameter"].append(
                stack.format_arn(service="ssm", resource="parameter", resource_name=one.name.lstrip("/"))
            )
        elif one.name.startswith("arn:"):
            arns["secretsmanager:GetSecretValue"].append(one.name)
        else:
            # Secrets Manager adds six characters of its own to every name.
            arns["secretsmanager:GetSecretValue"].append(
                stack.format_arn(
                    service="secretsmanager",
                    resource="secret",
                    resource_name=f"{one.name}-??????",
                    arn_format=ArnFormat.COLON_RESOURCE_NAME,
                )
            )
    statements = [iam.PolicyStatement(actions=[action], resources=named) for action, named in sorted(arns.items())]
    contexts = {"ssm:GetParameter": "PARAMETER_ARN", "secretsmanager:GetSecretValue": "SecretARN"}
    return statements + [
        iam.PolicyStatement(
            actions=["kms:Decrypt"],
            resources=[key.key_arn],
            conditions={"StringLike": {f"kms:EncryptionContext:{contexts[action]}": named}},
        )
        for action, named in sorted(arns.items())
        if key
    ]


def _leave_failures(bucket: s3.IBucket, prefix: str) -> list[iam.PolicyStatement]:
    # What Lambda documents for an S3 destination: it also looks whether the bucket is there.
    return [
        iam.PolicyStatement(actions=["s3:PutObject"], resources=[bucket.arn_for_objects(f"{prefix}*")]),
        iam.PolicyStatement(actions=["s3:ListBucket"], resources=[bucket.bucket_arn]),
        *use_key(bucket, reads=False),
    ]


@jsii.implements(lambda_.IDestination)
class _Bucket:
    """CDK's S3Destination also lets the function read every object there."""

    def __init__(self, bucket: s3.IBucket) -> None:
        self._arn = bucket.bucket_arn

    @jsii.member(jsii_name="bind")
    def bind(
        self, scope: Construct, fn: lambda_.IFunction, *, type: lambda_.DestinationType
    ) -> lambda_.DestinationConfig:
        return lambda_.DestinationConfig(destination=self._arn)
