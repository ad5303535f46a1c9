"""Fixtures for pytest: `pytest_plugins = ["s3queue.testing.plugin"]` in the conftest.py of the tests' root."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from s3queue.connect import lend_memory

from .bucket import MemoryBucket
from .clock import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    """The time of `bucket`: `clock.advance(3600)`."""
    return VirtualClock()


@pytest.fixture
def bucket(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBucket]:
    """An empty bucket in memory; what `S3QUEUE_URL` names during the test, so that `definition.enqueue` uses it."""
    made = MemoryBucket(clock)
    monkeypatch.setenv("S3QUEUE_URL", made.url)
    with lend_memory(made.store):
        yield made
    made.close()
