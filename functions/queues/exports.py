"""exports: writes a dataset of the bucket as files for others. It is heavy, so Spark does it (spark/jobs/exports.py).

The worker function only starts Spark runs. Without a Spark application, messages wait, unclaimed.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from s3queue.worker.definition import define

#: What may be read, as prefixes of the bucket. Whoever may enqueue reads it, so history (`archive/`) is not among them;
#: add it here if every producer of this queue may see every message's outcome: it is read as a table, format parquet.
#: The run's role follows (infra).
SOURCES = ("datasets/",)
#: Where results may go: below it, and nowhere else.
DESTINATION = "analytics/exports/"
#: Each is a LIST, and what they hold is read.
MOST_SOURCES = 100
FUNCTIONS = ("count", "count_distinct", "sum", "avg", "min", "max")

queue = define(
    "exports",
    engine="spark",
    # A run without a heartbeat for this long has failed: its heartbeat keeps the messages that it holds.
    visibility_timeout=300,
    max_attempts=3,
    retry_base=30,
    # Exports at a time in one run; the worker function only launches runs.
    concurrency=2,
    memory_mib=256,
    max_runs=1,
    messages_per_run=100,
)

_KEY = re.compile(r"[A-Za-z0-9!_.*'()/=+,@:-]+")
Column = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class Measure(BaseModel):
    """One number for each group."""

    model_config = ConfigDict(extra="forbid")

    function: Literal["count", "count_distinct", "sum", "avg", "min", "max"]
    #: Not needed to count rows.
    column: Column | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Measure:
        if self.column is None and self.function != "count":
            raise ValueError(f"{self.function} needs a column")
        return self


class Aggregation(BaseModel):
    """How rows are grouped, and what is computed for each group; without `by`, there is one row."""

    model_config = ConfigDict(extra="forbid")

    by: list[Column] = Field(default_factory=list, max_length=20)
    measures: dict[Column, Measure] = Field(min_length=1, max_length=50)


class Export(BaseModel):
    """What producers PUT, as JSON."""

    model_config = ConfigDict(extra="forbid")

    #: Keys, or prefixes of keys, of this bucket.
    source: str | list[str] = Field(description="a prefix such as datasets/orders/, a key, or several of them")
    source_format: Literal["ndjson", "csv", "parquet"]
    #: For example `amount > 10 and country in ('DE', 'FR')`; spark/datasets/expressions.py describes the language.
    filter: str | None = Field(default=None, max_length=4000)
    columns: list[Column] | None = Field(default=None, min_length=1, max_length=500)
    aggregate: Aggregation | None = None
    format: Literal["parquet", "csv", "json"] = "parquet"
    destination: str
    escape_formulas: bool = Field(
        default=True,
        description="In a CSV, put ' before a text that a spreadsheet would run as a formula, such as =1+1",
    )

    @property
    def sources(self) -> list[str]:
        return [self.source] if isinstance(self.source, str) else list(self.source)

    @field_validator("source")
    @classmethod
    def _is_readable(cls, source: str | list[str]) -> str | list[str]:
        if isinstance(source, list) and len(source) > MOST_SOURCES:
            raise ValueError(f"source names {len(source)} keys and prefixes; at most {MOST_SOURCES}")
        for key in [source] if isinstance(source, str) else source:
            _check(key, "source", SOURCES)
        if not source:
            raise ValueError("source must name at least one key or prefix")
        return source

    @field_validator("destination")
    @classmethod
    def _is_writable(cls, destination: str) -> str:
        _check(destination, "destination", (DESTINATION,))
        if not destination.endswith("/"):
            raise ValueError("destination must end with '/': files are written below it")
        return destination

    @model_validator(mode="after")
    def _makes_sense(self) -> Export:
        if self.columns and self.aggregate:
            raise ValueError("give columns or aggregate, not both: an aggregation defines its own columns")
        return self


def _check(key: str, what: str, allowed: tuple[str, ...]) -> None:
    if not _KEY.fullmatch(key) or any(part in (".", "..") for part in key.split("/")):
        raise ValueError(f"{what} {key!r} is not a plain key or prefix")
    if not key.startswith(allowed):
        raise ValueError(f"{what} {key!r} must start with {' or '.join(allowed)}")
