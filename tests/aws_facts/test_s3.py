"""The emulators, held against what S3 answers: where one differs, s3.toml says so, and only there."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from support.s3_servers import fresh_bucket, s3_client

from .__main__ import main
from .runner import Fact, differences, facts

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

#: Nobody here knows IAM; `make aws-smoke` asks S3 itself, and the stores' own tests know both answers.
ASKED = [fact for fact in facts() if not fact.allowed]


@pytest.fixture(scope="module", params=["moto", "seaweedfs"])
def place(request: pytest.FixtureRequest) -> tuple[str, S3Client, str]:
    """A server, a client for it, and a bucket there."""
    client = s3_client(request.getfixturevalue(f"{request.param}_endpoint"))
    return request.param, client, fresh_bucket(client)


@pytest.mark.parametrize("fact", ASKED, ids=lambda fact: fact.name)
def test_a_server_answers_as_s3_does(place: tuple[str, S3Client, str], fact: Fact) -> None:
    server, client, bucket = place
    found = differences(fact, client, bucket)
    if server in fact.differs:
        assert found, f"{server} does as S3 does by now; take it out of s3.toml"
    else:
        assert not found, f"{fact.source}\n" + "\n".join(found)


def test_every_fact_has_a_source_and_a_name_of_its_own() -> None:
    found = facts()
    assert len({fact.name for fact in found}) == len(found)
    assert all(fact.source.startswith("https://docs.aws.amazon.com/") and fact.read for fact in found)
    assert {server for fact in found for server in fact.differs} <= {"moto", "seaweedfs", "ministack"}


def test_a_server_is_asked_from_the_command_line(moto_endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    client = s3_client(moto_endpoint)
    bucket = fresh_bucket(client)
    with patch.object(sys, "argv", ["aws_facts", "--bucket", bucket, "--endpoint", moto_endpoint, "--json"]):
        assert main() == 1

    told = {one["fact"]: one["state"] for one in map(json.loads, capsys.readouterr().out.splitlines())}
    assert told == {
        fact.name: "not asked" if fact.allowed else "differs" if "moto" in fact.differs else "as written"
        for fact in facts()
    }
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
