"""What IAM, which the local stack enforces, lets producers and the functions do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from s3queue.queue import Queue
from support.deployed_stack import DeployedStack
from support.iam_template import Template


@pytest.fixture
def s3_of(bench: DeployedStack, keys_of: Any) -> Any:
    """An S3 client of a new user with these policies."""
    return lambda *policies: bench.stack.client_as("s3", *keys_of(*policies))


def is_denied(call: Any, **arguments: Any) -> bool:
    try:
        call(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"] == "AccessDenied"
    return False


def test_a_producer_may_enqueue_to_its_queue_and_nothing_else(bench: DeployedStack, s3_of: Any, unique: str) -> None:
    outputs = bench.stack.client("cloudformation").describe_stacks(StackName="s3queue")["Stacks"][0]["Outputs"]
    (policy,) = [output["OutputValue"] for output in outputs if "emailsProducerPolicy" in output["OutputKey"]]
    s3, bucket = s3_of(policy), bench.stack.bucket
    body = f'{{"to": "{unique}@example.com", "subject": "Hello"}}'.encode()

    s3.put_object(Bucket=bucket, Key=f"emails/messages/{unique}.json", Body=body)
    s3.put_object(Bucket=bucket, Key=f"emails/delayed/20990101T000000Z/{unique}.json", Body=body)

    assert is_denied(s3.get_object, Bucket=bucket, Key=f"emails/messages/{unique}.json")
    assert is_denied(s3.list_objects_v2, Bucket=bucket, Prefix="emails/")
    assert is_denied(s3.delete_object, Bucket=bucket, Key=f"emails/messages/{unique}.json")
    for key in (f"webhooks/messages/{unique}.json", "emails/queue.json", f"emails/dead/messages/{unique}.json"):
        assert is_denied(s3.put_object, Bucket=bucket, Key=key, Body=body), key
    bench.stack.client("s3").delete_object(Bucket=bucket, Key=f"emails/delayed/20990101T000000Z/{unique}.json")


def test_a_producer_that_may_only_create_replaces_nothing(bench: DeployedStack, s3_of: Any, unique: str) -> None:
    s3, bucket = s3_of(), bench.stack.bucket
    iam, user = bench.stack.client("iam"), f"user-{unique}-0"
    iam.put_user_policy(UserName=user, PolicyName="create", PolicyDocument=json.dumps(create_only(bucket, "emails")))
    key = f"emails/delayed/20990101T000000Z/{unique}"
    try:
        assert is_denied(s3.put_object, Bucket=bucket, Key=key, Body=b"{}")
        s3.put_object(Bucket=bucket, Key=key, Body=b"{}", IfNoneMatch="*")
        with pytest.raises(ClientError, match="PreconditionFailed"):
            s3.put_object(Bucket=bucket, Key=key, Body=b"{}", IfNoneMatch="*")
        assert is_denied(s3.put_object, Bucket=bucket, Key=f"webhooks/messages/{unique}", Body=b"{}", IfNoneMatch="*")

        upload = {"Bucket": bucket, "Key": f"{key}-large"}
        upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
        part = s3.upload_part(**upload, PartNumber=1, Body=b"{}")["ETag"]
        parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
        assert is_denied(s3.complete_multipart_upload, **upload, MultipartUpload=parts)
        s3.complete_multipart_upload(**upload, MultipartUpload=parts, IfNoneMatch="*")
    finally:
        iam.delete_user_policy(UserName=user, PolicyName="create")
        for left in (key, f"{key}-large"):
            bench.stack.client("s3").delete_object(Bucket=bucket, Key=left)


def create_only(bucket: str, queue: str) -> dict[str, Any]:
    """The policy document, as a stack with `create_only_producers` has it."""
    from aws_cdk import App, Stack
    from aws_cdk import aws_s3 as s3

    from infra.permissions import create_only_statements

    scope = Stack(App(), "scope")
    named = s3.Bucket.from_bucket_name(scope, "Bucket", bucket)
    statements = [statement.to_statement_json() for statement in create_only_statements(named, queue)]
    return {"Version": "2012-10-17", "Statement": Template({}).resolve(scope.resolve(statements))}


def test_not_even_an_administrator_writes_state_unconditionally(bench: DeployedStack, s3_of: Any, unique: str) -> None:
    s3, bucket = s3_of("arn:aws:iam::aws:policy/AdministratorAccess"), bench.stack.bucket
    for kind in ("leases", "records", "locks"):
        key = f"emails/{kind}/{unique}"
        assert is_denied(s3.put_object, Bucket=bucket, Key=key, Body=b"{}"), kind
        s3.put_object(Bucket=bucket, Key=key, Body=b"{}", IfNoneMatch="*")
        s3.delete_object(Bucket=bucket, Key=key)


def test_not_even_an_administrator_enqueues_what_no_worker_could_read(
    bench: DeployedStack, s3_of: Any, unique: str
) -> None:
    s3, bucket = s3_of("arn:aws:iam::aws:policy/AdministratorAccess"), bench.stack.bucket
    key = f"emails/delayed/20990101T000000Z/{unique}.json"
    for said in (
        {"StorageClass": "GLACIER"},
        {"StorageClass": "DEEP_ARCHIVE"},
        {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": b"k" * 32},
        {"ServerSideEncryption": "aws:kms"},
        {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "arn:aws:kms:us-east-1:999999999999:key/theirs"},
    ):
        assert is_denied(s3.put_object, Bucket=bucket, Key=key, Body=b"{}", **said), said
    (rule,) = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    default = rule["ApplyServerSideEncryptionByDefault"]
    own = {"ServerSideEncryption": default["SSEAlgorithm"]}
    if key_of_ours := default.get("KMSMasterKeyID"):
        assert is_denied(s3.put_object, Bucket=bucket, Key=key, Body=b"{}", ServerSideEncryption="AES256")
        own["SSEKMSKeyId"] = key_of_ours
    s3.put_object(Bucket=bucket, Key=key, Body=b"{}", StorageClass="STANDARD", **own)
    s3.delete_object(Bucket=bucket, Key=key)


def test_no_function_was_ever_refused_a_request(bench: DeployedStack, emails: Queue, unique: str) -> None:
    # Last in this folder: it judges what all the others made the functions do.
    path = bench.put("emails", f"messages/{unique}.json", {"to": f"{unique}@example.com", "subject": "Hello"})
    bench.outcome(emails, path, sweeping=True)
    said = {function: bench.logged(function) for function in [*bench.stack.workers.values(), bench.stack.sweeper]}
    assert said[bench.stack.workers["emails"]], "without logs this would prove nothing"
    assert not [line for lines in said.values() for line in lines if "AccessDenied" in line]
