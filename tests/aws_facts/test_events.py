"""The events that the suite calls AWS's, and the states that the code knows, held against what AWS documents."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from infra.local.emr import job_runs
from s3queue.documents import run_documents
from s3queue.keys import Keys
from s3queue.spark_runs import emr_serverless
from s3queue.worker import notifications
from support.recorded_events import EVENTS

HERE = Path(__file__).parent
EMR = tomllib.loads((HERE / "emr.toml").read_text("utf-8"))
S3 = tomllib.loads((HERE / "events.toml").read_text("utf-8"))
#: What only S3 sends: one is damaged on purpose, and three are others'.
FROM_S3 = sorted(
    path.stem
    for path in EVENTS.glob("*.json")
    if path.stem not in ("malformed_record", "test_event", "eventbridge", "dispatch", "emr_failed")
)


def recorded(name: str) -> Any:
    return json.loads((EVENTS / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize("name", FROM_S3)
def test_a_recorded_notification_has_the_shape_that_s3_documents(name: str) -> None:
    for record in recorded(name)["Records"]:
        assert set(S3["record"]["fields"]) <= set(record)
        assert record["eventVersion"].split(".")[0] == S3["record"]["major_version"]
        if record["eventName"].startswith("ObjectCreated:"):
            assert set(S3["record"]["object"]) <= set(record["s3"]["object"])


@pytest.mark.parametrize("fact", S3["keys"], ids=lambda fact: fact["key"])
def test_a_key_is_read_as_s3_writes_it(fact: dict[str, str]) -> None:
    event = recorded("put")
    event["Records"][0]["s3"]["object"]["key"] = fact["written"]
    event["Records"][0]["s3"]["bucket"]["name"] = "bucket"
    (found,) = notifications.read(event, Keys("q"), "bucket")
    assert f"q/{found.path}" == fact["key"]


def test_the_states_of_a_run_are_those_of_awss_model_and_the_code_knows_which_end_it() -> None:
    model: Any = botocore.session.get_session().get_service_model("emr-serverless").shape_for("JobRunState")
    assert set(EMR["states"]["all"]) == set(model.enum)
    assert emr_serverless._ENDED == job_runs.ENDED == set(EMR["states"]["ended"])
    # Beside those of EMR, a manifest's own.
    assert set(EMR["states"]["ended"]) == run_documents._ENDED - {"CLOSED"}


def test_a_recorded_event_of_a_run_is_as_emr_documents_it() -> None:
    event = recorded("emr_failed")
    assert (event["source"], event["detail-type"]) == (EMR["event"]["source_name"], EMR["event"]["detail_type"])
    assert set(EMR["event"]["detail"]) <= set(event["detail"])
