"""The exports queue: what a request must say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from queues.exports import Export, queue
from s3queue.definition import parser

GOOD = {"source": "emails", "first_day": "2026-11-01", "last_day": "2026-11-30"}


def test_exports_are_sparks_work() -> None:
    assert (queue.name, queue.settings.engine) == ("exports", "spark")
    with pytest.raises(ValueError, match="no handler"):
        queue.call(None, None)


def test_a_request_names_a_queue_and_days() -> None:
    export = Export.model_validate(GOOD)
    assert (export.source, export.format, export.outcome) == ("emails", "csv", None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": "../emails"},
        {"source": "archive"},
        {"first_day": "2026-12-01"},
        {"last_day": "tomorrow"},
        {"format": "xlsx"},
        {"outcome": "lost"},
        {"where": "1=1"},
    ],
)
def test_a_request_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        parser(Export)(json.dumps(GOOD | wrong).encode())
