"""The exports queue: what a request must say. What becomes of it is in tests/spark/test_exports.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from queues.exports import Export, queue
from s3queue.worker.definition import parser

GOOD = {"source": "datasets/orders/", "source_format": "csv", "destination": "analytics/exports/orders/"}


def test_exports_are_sparks_work() -> None:
    assert (queue.name, queue.settings.engine) == ("exports", "spark")
    with pytest.raises(ValueError, match="no handler"):
        queue.call(None, None)


def test_a_request_names_a_dataset_and_a_destination() -> None:
    export = Export.model_validate(GOOD)
    assert (export.sources, export.format, export.filter) == (["datasets/orders/"], "parquet", None)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"destination": "emails/messages/"}, "must start with analytics/exports/"),
        ({"destination": "analytics/exports/../../emails/"}, "not a plain key"),
        ({"destination": "analytics/exports/x"}, "must end with '/'"),
        ({"source": "emails/messages/"}, "must start with datasets/"),
        ({"source": "archive/queue=emails/"}, "must start with datasets/"),
        ({"source": "analytics/spark-logs/"}, "must start with datasets/"),
        ({"source": ["datasets/orders/", "archive/"]}, "must start with datasets/"),
        ({"source": [f"datasets/{n}" for n in range(101)]}, "names 101 keys and prefixes; at most 100"),
        ({"destination": "datasets/"}, "must start with analytics/exports/"),
        ({"destination": "analytics/latest.json/"}, "must start with analytics/exports/"),
        ({"source": "datasets/../emails/"}, "not a plain key"),
        ({"source": []}, "must name at least one key"),
        ({"format": "xlsx"}, "'parquet', 'csv' or 'json'"),
        ({"sql": "select 1"}, "Extra inputs"),
        ({"aggregate": {"measures": {"x": {"function": "sum"}}}}, "sum needs a column"),
        ({"columns": ["a"], "aggregate": {"measures": {"x": {"function": "count"}}}}, "not both"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        parser(Export)(json.dumps(GOOD | wrong).encode())
