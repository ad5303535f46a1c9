"""What the policies of the bucket and of its key say themselves, whoever asks: roles have theirs in `permissions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aws_cdk import ArnFormat, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3

from s3queue.keys import Keys

#: Where messages lie, of every queue; also `{queue}/leases/messages/…` and so on, which nobody writes otherwise either.
MESSAGES: Sequence[str] = ("*/messages/*", "*/delayed/*")
#: State whose every write must be conditional: an unconditional one could overwrite someone's claim or outcome. The
#: documents of schedules are not in it: with a third name for each of a hundred queues, the policy would be too long.
CONDITIONAL: Sequence[str] = ("leases", "records", "locks")
#: The same, in as few letters as tell them from the other kinds: a bucket has one policy, of 20,480 characters.
_CONDITIONAL_PATTERNS: Sequence[str] = ("l*", "rec*")


def key_statements(stack: Stack) -> list[dict[str, Any]]:
    """What the key's own policy has to allow AWS's services; roles are allowed by their own policies."""
    logs = stack.format_arn(
        service="logs", resource="log-group", resource_name="*", arn_format=ArnFormat.COLON_RESOURCE_NAME
    )
    return [
        {
            "Sid": "Logs",
            "Effect": "Allow",
            "Principal": {"Service": f"logs.{stack.region}.{stack.url_suffix}"},
            "Action": ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"],
            "Resource": "*",
            "Condition": {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": logs}},
        },
        {
            "Sid": "Alarms",
            "Effect": "Allow",
            "Principal": {"Service": "cloudwatch.amazonaws.com"},
            "Action": ["kms:Decrypt", "kms:GenerateDataKey*"],
            "Resource": "*",
            "Condition": {"StringEquals": {"aws:SourceAccount": stack.account}},
        },
        {
            # EventBridge says neither account nor rule when it asks KMS; a condition would drop every notice.
            "Sid": "FailedRuns",
            "Effect": "Allow",
            "Principal": {"Service": "events.amazonaws.com"},
            "Action": ["kms:Decrypt", "kms:GenerateDataKey*"],
            "Resource": "*",
        },
    ]


def deny_unconditional_writes(bucket: s3.IBucket, queues: Sequence[str]) -> iam.PolicyStatement:
    """Nobody, an administrator with a shell included, can overwrite a lease without naming the one that it replaces."""
    return iam.PolicyStatement(
        sid="DenyUnconditionalWritesOfState",
        effect=iam.Effect.DENY,
        principals=[iam.AnyPrincipal()],
        actions=["s3:PutObject"],
        resources=[bucket.arn_for_objects(Keys(q).root + kind) for q in queues for kind in _CONDITIONAL_PATTERNS],
        conditions={"Null": {"s3:if-none-match": "true", "s3:if-match": "true"}},
    )


def deny_unreadable_messages(bucket: s3.IBucket) -> list[iam.PolicyStatement]:
    """Refuse, at the PUT, what no worker could read: an archived message, or one under a key that is not the bucket's.

    A PUT that says nothing of class and encryption passes. `StringNotEquals` alone would deny it: in IAM a negated
    operator is met by a key that is absent, and so is its `…IfExists` form. Multipart uploads say both when they begin.
    """

    def deny(sid: str, **conditions: Mapping[str, str]) -> iam.PolicyStatement:
        return iam.PolicyStatement(
            sid=sid,
            effect=iam.Effect.DENY,
            principals=[iam.AnyPrincipal()],
            actions=["s3:PutObject"],
            resources=[bucket.arn_for_objects(pattern) for pattern in MESSAGES],
            conditions=conditions,
        )

    def other_than(key: str, value: str) -> dict[str, Mapping[str, str]]:
        return {"Null": {key: "false"}, "StringNotEquals": {key: value}}

    encryption, kms_key = "s3:x-amz-server-side-encryption", "s3:x-amz-server-side-encryption-aws-kms-key-id"
    own = bucket.encryption_key
    return [
        # Not a list of the archives: the next one will have another name. INTELLIGENT_TIERING is refused, too, because
        # a configuration of the bucket can make it an archive; and every other class bills a message of a second for
        # at least a month.
        deny("DenyArchivedMessages", **other_than("s3:x-amz-storage-class", "STANDARD")),
        deny("DenyCustomerKeys", Null={"s3:x-amz-server-side-encryption-customer-algorithm": "false"}),
        *(
            [deny("DenyForeignKmsKeys", **other_than(encryption, "AES256"))]
            if own is None
            else [
                deny("DenyForeignKmsKeys", **other_than(kms_key, own.key_arn)),
                # Then S3 takes the key `aws/s3`, of whichever account.
                deny("DenyUnnamedKmsKeys", StringLike={encryption: "aws:kms*"}, Null={kms_key: "true"}),
                # Anybody who may read the bucket could read it, without the key.
                deny("DenyOtherEncryption", StringEquals={encryption: "AES256"}),
            ]
        ),
    ]
