"""Queries without Spark: a `per_batch` job whose DataFrame is a list, which the real `BatchWork` has read.

The rows come from the real `read_message`, when the frame is first asked for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import spark.heavy.batches as batches
from s3queue.store import ObjectStore


class Row(NamedTuple):
    path: str
    line: int
    body: bytes | None
    attempt: int
    enqueued_at: datetime

    @property
    def is_long(self) -> bool:
        """The one column that `BatchWork` computes."""
        return self.body is None


@dataclass(frozen=True)
class _Paths:
    """`frame.path`, and what is said of it: `~frame.path.isin(paths)`."""

    left_out: frozenset[str] = frozenset()

    def isin(self, paths: Sequence[str]) -> _Paths:
        return _Paths(frozenset(paths))

    def __invert__(self) -> _Paths:
        return self


class FakeFrame:
    """What `BatchWork` asks of a DataFrame, and nothing else."""

    path = _Paths()

    def __init__(self, read: Callable[[], list[Row]]) -> None:
        self._read = read
        self._rows: list[Row] | None = None

    def persist(self) -> FakeFrame:
        return self

    def unpersist(self) -> FakeFrame:
        return self

    def selectExpr(self, *columns: str) -> FakeFrame:  # noqa: N802
        return self

    def where(self, condition: str | _Paths) -> FakeFrame:
        if isinstance(condition, _Paths):
            return FakeFrame(lambda: [row for row in self.collect() if row.path not in condition.left_out])
        assert condition == "body is not null", condition
        return FakeFrame(lambda: [row for row in self.collect() if row.body is not None])

    def collect(self) -> list[Row]:
        self._rows = self._read() if self._rows is None else self._rows
        return self._rows


class FakeBatches(batches.BatchWork):
    """The real one, with a bucket that lies in the same process, and no session."""

    def __init__(self, per_batch: Callable[[Any, Any], Any], store: ObjectStore, **options: Any) -> None:
        bucket: Any = SimpleNamespace(store=lambda: store)
        super().__init__(per_batch, None, bucket, **options)  # type: ignore[arg-type]

    def _session(self, number: int) -> Any:
        return None


def fetch(spark: Any, asked: Sequence[Any], _: str, __: str, read: Callable[[Any], Iterator[Any]]) -> FakeFrame:
    return FakeFrame(lambda: [Row(*row) for one in asked for row in read(one)])


@contextmanager
def fake_frames() -> Iterator[None]:
    """A job gets a `FakeFrame` meanwhile, and returns a dict: (path, line) to (result, error, whether to reject)."""
    with patch.object(batches, "fetch", fetch), patch.object(batches, "outcomes_of", dict):
        yield
