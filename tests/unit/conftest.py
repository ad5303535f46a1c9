"""What most unit tests start from: a bucket in memory under virtual time, and a queue in it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from s3queue import Lock, Queue
from s3queue.store import ObjectStore
from s3queue.stores.memory import MemoryStore
from support.fake_jobs import FakeJobs
from support.manual_clock import ManualClock
from support.sample_lock import KEY, TTL
from support.workbench import Workbench


@pytest.fixture
def bench() -> Workbench:
    return Workbench()


@pytest.fixture
def queue(bench: Workbench) -> Queue:
    return bench.queue()


@pytest.fixture
def dispatched() -> list[str]:
    """What a sweeper dispatched, once it is made with this list."""
    return []


@pytest.fixture
def jobs() -> FakeJobs:
    return FakeJobs()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def lock(store: MemoryStore, clock: ManualClock) -> Callable[..., Lock]:
    """Makes locks on one key, for one owner each."""

    def make(owner: str, ttl: timedelta = TTL, on: ObjectStore | None = None) -> Lock:
        return Lock(on or store, KEY, ttl, owner=owner, clock=clock)

    return make


@pytest.fixture
def moto_endpoint() -> str:
    return pytest.fail("a unit test starts no server: put it into tests/contract")


@pytest.fixture
def seaweedfs_endpoint() -> str:
    return pytest.fail("a unit test starts no server: put it into tests/contract")
