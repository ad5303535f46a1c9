"""What is sent to AWS is held against AWS's own models, in every test of this suite."""

from __future__ import annotations

from typing import Any

import boto3
import botocore.session
import pytest
from botocore.exceptions import ParamValidationError

from support.api_models import violations

ROLE = "arn:aws:iam::123456789012:role/spark"
RUN: dict[str, Any] = {"applicationId": "00abc123", "clientToken": "r1", "executionRoleArn": ROLE}


def of(service: str, operation: str, parameters: dict[str, Any]) -> list[str]:
    model = botocore.session.get_session().get_service_model(service)
    return list(violations(parameters, model.operation_model(operation).input_shape))


def test_what_aws_takes_is_taken() -> None:
    assert of("emr-serverless", "StartJobRun", RUN) == []
    assert of("s3", "PutObject", {"Bucket": "b", "Key": "k", "StorageClass": "STANDARD"}) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"clientToken": "t" * 65}, "clientToken has 65 characters, at most 64"),
        ({"executionRoleArn": "role/spark"}, "executionRoleArn is 'role/spark'"),
        ({"name": ""}, "name has 0 characters, at least 1"),
        ({"mode": "BULK"}, "mode is 'BULK', not one of BATCH, STREAMING"),
        ({"tags": {"k" * 129: "v"}}, "has 129 characters, at most 128"),
        ({"jobDriver": {"sparkSubmit": {"entryPoint": "x" * 4097}}}, "entryPoint has 4097 characters, at most 4096"),
    ],
)
def test_what_aws_refuses_is_told(changed: dict[str, Any], said: str) -> None:
    assert said in "; ".join(of("emr-serverless", "StartJobRun", RUN | changed))


def test_every_client_of_this_process_is_checked() -> None:
    client = boto3.session.Session().client("emr-serverless", endpoint_url="http://127.0.0.1:9")
    with pytest.raises(ParamValidationError, match="clientToken has 65 characters"):
        client.start_job_run(**RUN | {"clientToken": "t" * 65})
