"""A customer's own key: everything that holds data has it, and each role may use it as far as it has to."""

from __future__ import annotations

from typing import Any

import pytest

from support.iam_template import ACCOUNT, REGION, Role
from support.spark_stack import role, synthesized
from support.stack_variant import KEY, QUEUES, Synthesize, Variant

READ, WRITE = "kms:Decrypt", "kms:GenerateDataKey"


@pytest.fixture(scope="module")
def kms(synthesize: Synthesize) -> Variant:
    return synthesize(kms_key=KEY)


def may_use(who: Role, bucket: str) -> set[str]:
    """For objects of this bucket, with and without a bucket key."""
    contexts = [{"kms:EncryptionContext:aws:s3:arn": arn} for arn in (bucket, f"{bucket}/emails/messages/x")]
    found = [{action for action in (READ, WRITE) if who.may(action, KEY, context)} for context in contexts]
    assert found[0] == found[1]
    return found[0]


def test_everything_that_holds_data_is_encrypted_with_it(kms: Variant, stack: Variant) -> None:
    for bucket in kms.of_type("AWS::S3::Bucket"):
        (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KEY}
        assert rule["BucketKeyEnabled"] is True
    assert {group["KmsKeyId"] for group in kms.of_type("AWS::Logs::LogGroup")} == {KEY}
    assert [topic["KmsMasterKeyId"] for topic in kms.of_type("AWS::SNS::Topic")] == [KEY]
    assert KEY not in str(stack.template.resources)


def test_each_role_may_use_the_key_as_far_as_it_has_to(kms: Variant) -> None:
    for name in ("s3queue_sweeper", "s3queue_api", *(f"s3queue-{queue}" for queue in QUEUES)):
        assert may_use(kms.template.role_of(name), kms.bucket) == {READ, WRITE}, name
    assert may_use(kms.template.role_of("s3queue_api_reader"), kms.bucket) == {READ}


def test_nobody_may_use_the_key_for_anything_else(kms: Variant) -> None:
    for name in ("s3queue_sweeper", "s3queue_api", "s3queue_api_reader", "s3queue-emails"):
        who = kms.template.role_of(name)
        assert may_use(who, "arn:aws:s3:::another-bucket") == set(), name
        assert not who.may(READ, KEY), name
        assert not who.may("kms:Encrypt", KEY, {"kms:EncryptionContext:aws:s3:arn": kms.bucket}), name


def test_a_worker_leaves_failed_invocations_and_reads_none(kms: Variant) -> None:
    (destination,) = {
        config["DestinationConfig"]["OnFailure"]["Destination"]
        for config in kms.of_type("AWS::Lambda::EventInvokeConfig")
        if "DestinationConfig" in config
    }
    assert may_use(kms.template.role_of("s3queue-emails"), destination) == {WRITE}


@pytest.mark.parametrize("create_only", [False, True])
def test_a_producer_may_encrypt_what_it_sends_in_parts_too(synthesize: Synthesize, create_only: bool) -> None:
    stack = synthesize(kms_key=KEY, create_only_producers=create_only)
    (policy,) = [
        found["PolicyDocument"]["Statement"]
        for id, found in stack.template.of_type("AWS::IAM::ManagedPolicy").items()
        if "Queueemails" in id and "Producer" in id and "bulk" not in id
    ]
    producer = Role(stack.template, policy)
    assert may_use(producer, stack.bucket) == {READ, WRITE}
    assert not producer.may("s3:GetObject", f"{stack.bucket}/emails/messages/x")


def test_runs_and_pipeline_may_use_it(tmp_path: Any) -> None:
    template = synthesized(tmp_path, schedule_pipeline=True, kms_key=KEY)
    for name in ("JobRole", "HistoryRole", "BulkRole"):
        assert may_use(role(template, name), template.queue_bucket) == {READ, WRITE}, name
    assert {group["KmsKeyId"] for group in template.of_type("AWS::Logs::LogGroup").values()} == {KEY}


def test_a_message_is_encrypted_with_this_key_and_no_other_way(kms: Variant) -> None:
    everything = [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]
    administrator = Role(kms.template, everything)
    encryption = "s3:x-amz-server-side-encryption"

    def may(**said: str) -> bool:
        context = {f"{encryption}{name}": value for name, value in said.items()}
        return administrator.may("s3:PutObject", f"{kms.bucket}/emails/messages/x", context)

    key_id = "-aws-kms-key-id"
    assert may()
    assert may(**{"": "aws:kms", key_id: KEY})
    assert not may(**{"": "aws:kms"})
    assert not may(**{"": "aws:kms", key_id: KEY.replace("1234", "4321")})
    assert not may(**{"": "AES256"})
    assert not may(**{"-customer-algorithm": "AES256"})


def test_the_output_says_what_the_key_has_to_allow(tmp_path: Any) -> None:
    said = synthesized(tmp_path, kms_key=KEY).output("KeyPolicy")
    for needed in (f"logs.{REGION}.amazonaws.com", "cloudwatch.amazonaws.com", "events.amazonaws.com", ACCOUNT):
        assert needed in said


@pytest.mark.parametrize(
    "wrong", ["alias/mine", "1234abcd-12ab-34cd-56ef-1234567890ab", KEY.replace(":key/", ":alias/")]
)
def test_a_key_is_named_by_its_arn(wrong: str) -> None:
    from aws_cdk import App

    from infra.options import Options

    assert Options.from_context(App(context={"kms_key": KEY}).node).kms_key == KEY
    with pytest.raises(ValueError, match="ARN of a key"):
        Options.from_context(App(context={"kms_key": wrong}).node)
