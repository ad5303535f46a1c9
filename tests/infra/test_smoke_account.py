"""What `make aws-smoke` counts, and the account that it runs in, as a profile describes it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.stub import Stubber
from rich.console import Console

from infra.local.demo.messages import Sent
from infra.local.home import Home
from infra.local.steps import Steps
from infra.smoke import cost
from infra.smoke.account import BOOTSTRAP, Account, NotReady
from infra.smoke.observed import Observed
from s3queue.costs.prices import PRICES
from support.s3_servers import fresh_bucket, s3_client

# Costs and clocks


def test_spark_is_counted_as_it_is_billed_and_else_estimated() -> None:
    sent = [Sent(kind="", queue="smoke", path=f"messages/{n}", body=b"") for n in range(20)]
    asked = {"PutObject": 10, "ListObjectsV2": 2, "GetObject": 100, "HeadObject": 5, "DeleteObject": 7}
    usage = {"vCPUHour": 0.2, "memoryGBHour": 0.5, "storageGBHour": 2.0}
    jobs: list[dict[str, Any]] = [{"billedResourceUtilization": usage}] * 2

    lines = {line.what: line for line in cost.spent(sent, asked, jobs, queues=5, hours=0.5)}
    assert lines["EMR: vCPU"].count == pytest.approx(0.4)
    assert lines["EMR: vCPU"].cost == pytest.approx(0.4 * PRICES.emr_vcpu)
    assert lines["EMR: memory"].count == pytest.approx(1.0)
    assert "as EMR Serverless bills them" in lines["EMR: vCPU"].how
    assert lines["S3: PUT, heavy messages"].count > 0
    assert lines["S3: PUT and LIST, of the smoke itself"].count == 12
    assert lines["S3: GET, of the smoke itself"].count == 105
    # Three PUTs each, and more for what is retried or dies.
    assert 60 <= lines["S3: PUT, messages"].count < 80
    assert "Lambda: sweeper" in lines

    unbilled = {line.what: line for line in cost.spent(sent, asked, [*jobs, {}], queues=5, hours=0.5)}
    assert "from the model" in unbilled["EMR: vCPU"].how
    assert unbilled["EMR: vCPU"].count > 1


def test_the_clock_of_s3_is_known_the_better_the_more_it_says() -> None:
    observed = Observed()
    assert observed.ahead_seconds == 0
    # S3 is 2.3 s ahead; its Date is cut to whole seconds, and an answer takes 0.1 s.
    for tenth in range(0, 100, 7):
        asked_at = 1000 + tenth / 10
        observed.heard(asked_at, asked_at + 0.1, int(asked_at + 0.05 + 2.3))
    assert observed.ahead_seconds == pytest.approx(2.3, abs=observed.unsure_seconds)
    assert observed.unsure_seconds < 0.2


def test_every_request_to_s3_is_counted(moto_endpoint: str) -> None:
    observed = Observed()
    client = s3_client(moto_endpoint)
    bucket = fresh_bucket(client)
    observed.watch(client)
    for name in ("a", "b"):
        client.put_object(Bucket=bucket, Key=name, Body=b"x")
    client.list_objects_v2(Bucket=bucket)
    with pytest.raises(client.exceptions.NoSuchKey):
        client.get_object(Bucket=bucket, Key="none")
    assert observed.requests == {"PutObject": 2, "ListObjectsV2": 1, "GetObject": 1}
    # The same machine.
    assert abs(observed.ahead_seconds) <= observed.unsure_seconds + 0.01


# The account


def account_of(tmp_path: Path, *settings: str) -> Account:
    config = tmp_path / "config"
    keys = ("aws_access_key_id = AKIA", "aws_secret_access_key = s")
    config.write_text("\n".join(["[profile sandbox]", *keys, *settings]))
    session = botocore.session.Session(profile="sandbox")
    session.set_config_variable("config_file", str(config))
    return Account(session, "eu-west-1", Steps(Console(file=io.StringIO())), Home(tmp_path))


def test_a_profile_that_names_another_server_is_not_aws(tmp_path: Path) -> None:
    assert account_of(tmp_path).is_aws
    other = account_of(tmp_path, "endpoint_url = http://127.0.0.1:4566")
    assert not other.is_aws
    assert other.title.startswith("NOT AWS, but the server http://127.0.0.1:4566")


def test_programs_act_as_the_profile_and_not_as_the_shell(tmp_path: Path) -> None:
    shell = {"AWS_ACCESS_KEY_ID": "other", "AWS_SESSION_TOKEN": "other", "EMAIL_SMTP_HOST": "mail.example", "LANG": "C"}
    given = account_of(tmp_path).environment(shell)
    assert not {"AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "EMAIL_SMTP_HOST"} & set(given)
    assert (given["AWS_PROFILE"], given["AWS_REGION"], given["LANG"]) == ("sandbox", "eu-west-1", "C")
    assert given["EMAIL_OUTBOX"] == "/tmp/outbox"


def test_an_account_is_not_bootstrapped_silently(tmp_path: Path) -> None:
    account = account_of(tmp_path)
    with Stubber(account.client("ssm")) as ssm, Stubber(account.client("sts")) as sts:
        ssm.add_client_error("get_parameter", "ParameterNotFound", expected_params={"Name": BOOTSTRAP})
        sts.add_response("get_caller_identity", {"Account": "123456789012"})
        with pytest.raises(NotReady, match='make cdk ARGS="bootstrap aws://123456789012/eu-west-1"'):
            account.check()


@pytest.mark.parametrize(("unreserved", "options"), [(10, ["reserved_concurrency=false"]), (1000, [])])
def test_a_new_account_reserves_no_concurrency(tmp_path: Path, unreserved: int, options: list[str]) -> None:
    account = account_of(tmp_path)
    with Stubber(account.client("ssm")) as ssm, Stubber(account.client("lambda")) as functions:
        ssm.add_response("get_parameter", {"Parameter": {"Value": "30"}})
        limit = {"AccountLimit": {"UnreservedConcurrentExecutions": unreserved}}
        functions.add_response("get_account_settings", limit)
        assert list(account.check()) == options
