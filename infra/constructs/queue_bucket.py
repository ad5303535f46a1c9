"""The bucket that is the queues' whole state, and a second one for invocations that Lambda gave up on."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta

from aws_cdk import Annotations, Duration, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_notifications as notifications
from constructs import Construct

from s3queue.documents.flow import FLOWS
from s3queue.documents.sends import OUTBOX_KEPT
from s3queue.keys import Keys
from s3queue.settings import QueueSettings

from ..options import Options
from ..permissions import SPARK_LOGS_PREFIX
from ..resource_policies import deny_unconditional_writes, deny_unreadable_messages

#: S3 has so many notification rules for a bucket, and every queue needs one.
MAX_QUEUES = 100
#: With more queues than this there are not enough rules for a second one each: then delays of less than a minute may be
#: a minute late.
MAX_PROMPT_QUEUES = MAX_QUEUES // 2
#: Long enough to look at after a holiday, short enough not to matter on the bill.
FAILED_EVENTS_KEPT = Duration.days(14)
#: No flow may last longer: its documents go by their age.
FLOWS_KEPT = Duration.days(400)
#: How long a bulk run is remembered, so that it is not repeated, with the rows that it rejected.
BULK_KEPT = Duration.days(400)

SPARK_LOGS = s3.LifecycleRule(id="spark-logs", prefix=SPARK_LOGS_PREFIX, expiration=Duration.days(14))


class QueueBucket(Construct):
    """TLS only, private, encrypted, unversioned; messages that nobody could read are refused; state can only be written
    conditionally; old outcomes expire."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        queues: Mapping[str, QueueSettings],
        options: Options,
        sending: Collection[str] = (),
        has_flows: bool = False,
        existing: str = "",
    ) -> None:
        super().__init__(scope, id)
        #: A customer's own; None: S3's.
        self.key = customer_key(self, options)
        if not 1 <= len(queues) <= MAX_QUEUES:
            raise ValueError(
                f"{len(queues)} queues: a bucket needs one, and S3 has {MAX_QUEUES} notification rules for it; deploy "
                "a second installation beside the first, under another name (-c stack=…)"
            )
        role = iam.Role(self, "NotificationsRole", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        # CDK would give its handler s3:PutBucketNotification on every bucket of the account.
        handler_role = role.without_policy_updates()
        self.bucket: s3.IBucket = (
            self._existing(existing, handler_role)
            if existing
            else self._queues_bucket(queues, options, handler_role, sending=sending, has_flows=has_flows)
        )
        #: Not a prefix of the queues' bucket: Lambda wants ListBucket on the whole destination, and no worker may list
        #: another queue's messages.
        self.failed_events = self._private_bucket(
            "FailedEvents",
            options,
            lifecycle_rules=[s3.LifecycleRule(id="forget", expiration=FAILED_EVENTS_KEPT)],
            notifications_handler_role=handler_role,
        )
        self._notifications_policy = iam.Policy(
            self,
            "NotificationsPolicy",
            roles=[role],
            statements=[
                iam.PolicyStatement(
                    # To those of a bucket that exists, CDK's handler adds its own.
                    actions=["s3:PutBucketNotification", *(["s3:GetBucketNotification"] if existing else [])],
                    resources=[self.bucket.bucket_arn, self.failed_events.bucket_arn],
                ),
            ],
        )
        #: What the bucket's policy refuses, whoever keeps that.
        self.statements = deny_unreadable_messages(self.bucket)
        if options.enforce_conditional_writes:
            self.statements.append(deny_unconditional_writes(self.bucket, list(queues)))
        if not existing:
            for statement in self.statements:
                self.bucket.add_to_resource_policy(statement)

    def tell_of_failures(self, function: lambda_.IFunction, prefixes: Iterable[str]) -> None:
        """Wake a function when Lambda has given up an invocation, whose record then lies below one of these."""
        for prefix in prefixes:
            self.failed_events.add_event_notification(
                s3.EventType.OBJECT_CREATED,
                notifications.LambdaDestination(function),
                s3.NotificationKeyFilter(prefix=prefix),
            )

    def tell_of_delays(self, function: lambda_.IFunction, queues: Iterable[str]) -> None:
        """Wake a function when a delayed message comes, so that it is awake when that is due."""
        for queue in queues:
            self.bucket.add_event_notification(
                s3.EventType.OBJECT_CREATED,
                notifications.LambdaDestination(function),
                s3.NotificationKeyFilter(prefix=Keys(queue).prefix("delayed")),
            )

    def let_notifications_log(self, log_group: logs.ILogGroup) -> None:
        """Finish the handler of CDK's notification resource, which exists once the first notification is added."""
        self._notifications_policy.add_statements(write_logs(log_group))
        # The custom resource runs as soon as it is created, so the policy must be there before it.
        for bucket in (self.bucket, self.failed_events):
            bucket.node.find_child("Notifications").node.add_dependency(self._notifications_policy)

    def _existing(self, name: str, role: iam.IRole) -> s3.IBucket:
        """Somebody's own. CDK adds notifications to those that it has; policy and lifecycle rules stay as they are."""
        Annotations.of(self).add_warning_v2(
            "s3queue:existing-bucket",
            f"The bucket {name} is not this stack's. Add the statements of the output BucketPolicy to its policy: "
            "until then, a lease can be overwritten without a condition. It must not be versioned. Without "
            "lifecycle rules, old records and dead letters stay: `s3queue cleanup` deletes what is past its retention.",
        )
        return s3.Bucket.from_bucket_attributes(
            self, "Bucket", bucket_name=name, encryption_key=self.key, notifications_handler_role=role
        )

    def _queues_bucket(
        self,
        queues: Mapping[str, QueueSettings],
        options: Options,
        role: iam.IRole,
        *,
        sending: Collection[str],
        has_flows: bool,
    ) -> s3.Bucket:
        has_spark = options.schedule_pipeline or any(of.uses_spark for of in queues.values())
        return self._private_bucket(
            "Bucket",
            options,
            lifecycle_rules=[
                s3.LifecycleRule(id="unfinished-uploads", abort_incomplete_multipart_upload_after=Duration.days(1)),
                *([SPARK_LOGS] if has_spark else []),
                *([s3.LifecycleRule(id="flows", prefix=FLOWS, expiration=FLOWS_KEPT)] if has_flows else []),
                *(rule for name, of in queues.items() for rule in _expiry(Keys(name), of, sends=name in sending)),
                *(map(_bulk_expiry, queues) if has_spark else ()),
            ],
            notifications_handler_role=role,
        )

    def _private_bucket(
        self,
        id: str,
        options: Options,
        *,
        lifecycle_rules: Sequence[s3.LifecycleRule],
        notifications_handler_role: iam.IRole,
    ) -> s3.Bucket:
        return s3.Bucket(
            self,
            id,
            # An emulator speaks plain HTTP, which this denies to everyone.
            enforce_ssl=options.target == "aws",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.KMS if self.key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=self.key,
            # Else every request of S3 would be one of KMS, and paid for.
            bucket_key_enabled=True if self.key else None,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            # A version of every lease ever written would be kept, and paid for.
            versioned=False,
            lifecycle_rules=lifecycle_rules,
            removal_policy=RemovalPolicy.RETAIN if options.keep_data else RemovalPolicy.DESTROY,
            # CDK empties a bucket with a Node.js function, which the emulator cannot run; its state goes as a whole.
            auto_delete_objects=not options.keep_data and options.target == "aws",
            notifications_handler_role=notifications_handler_role,
        )


def customer_key(scope: Construct, options: Options) -> kms.IKey | None:
    """The key that `-c kms_key=…` names. Its policy is its owner's: the stack's output says what has to be in it."""
    return kms.Key.from_key_arn(scope, "Key", options.kms_key) if options.kms_key else None


def write_logs(log_group: logs.ILogGroup) -> iam.PolicyStatement:
    """Into this group only; without CreateLogGroup, so that no group outlives the stack."""
    return iam.PolicyStatement(
        actions=["logs:CreateLogStream", "logs:PutLogEvents"], resources=[log_group.log_group_arn]
    )


def _expiry(keys: Keys, settings: QueueSettings, *, sends: bool) -> list[s3.LifecycleRule]:
    return [
        s3.LifecycleRule(
            id=f"{keys.queue}-{kind}", prefix=keys.prefix(kind), expiration=Duration.days(_whole_days(retention))
        )
        for kind, retention in (
            ("records", settings.record_retention),
            ("done", settings.record_retention),
            # A call that is repeated after its message's record is gone is a new one.
            ("idempotency", settings.record_retention),
            # A dedup id counts at most as long as records are kept.
            ("dedup", settings.record_retention),
            ("dead", settings.dead_retention),
            *((("runs", settings.record_retention),) if settings.uses_spark else ()),
            # Parts that no record and no lease names, because a completion lost or never came; a batch may wait long.
            *((("outbox", settings.record_retention + OUTBOX_KEPT),) if sends else ()),
        )
    ]


def _bulk_expiry(queue: str) -> s3.LifecycleRule:
    return s3.LifecycleRule(id=f"{queue}-bulk", prefix=Keys(queue).prefix("bulk"), expiration=BULK_KEPT)


def _whole_days(retention: timedelta) -> int:
    # S3 counts days only; rounding up keeps the promise, and the sweeper removes dead letters to the minute.
    return max(1, math.ceil(retention / timedelta(days=1)))
