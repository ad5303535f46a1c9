"""exports: turns a slice of the archive into files for somebody else; heavy, so Spark does it.

The worker function only hands its messages to the Spark lane. Where none is deployed they wait, unclaimed.
"""

from __future__ import annotations

from datetime import date
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from s3queue.definition import define
from s3queue.keys import check_queue

queue = define(
    "exports",
    engine="spark",
    # How long a run may be silent: its heartbeat keeps the messages that it holds.
    visibility_timeout=300,
    max_attempts=3,
    retry_base=30,
    # The worker function only launches runs.
    concurrency=2,
    memory_mib=256,
    max_runs=1,
    batch=100,
)


class Export(BaseModel):
    """What producers PUT, as JSON: the history of one queue, from one day to another, both included."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    source: str = Field(description="the queue whose archived records are exported")
    first_day: date
    last_day: date
    format: Literal["csv", "json", "parquet"] = "csv"
    #: None: completed and dead alike.
    outcome: Literal["completed", "dead"] | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Export:
        check_queue(self.source)
        if self.last_day < self.first_day:
            raise ValueError("last_day is before first_day")
        return self
