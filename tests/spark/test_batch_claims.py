"""What becomes of a `per_batch` query's messages between their claim and its start. No JVM: the frames are lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.fake_frames import FakeBatches, fake_frames
from support.run_world import World


@pytest.fixture(autouse=True)
def no_spark() -> Iterator[None]:
    with fake_frames():
        yield


class Queries:
    """A run whose queries complete everything; `while_read` is called once, when the payloads have been read."""

    def __init__(self, world: World, while_read: Callable[[], None]) -> None:
        self.world = world
        self.lines: list[tuple[str, int]] = []
        self.claims: list[Any] = []
        self._while_read = while_read
        self.driver = world.driver(work=Reading(self))

    def per_batch(self, spark: Any, frame: Any) -> Any:
        rows = frame.collect()
        self.lines += [(row.path, row.line) for row in rows]
        return {(row.path, row.line): ("done", None, False) for row in rows}

    def was_read(self) -> None:
        happens, self._while_read = self._while_read, lambda: None
        happens()


class Reading(FakeBatches):
    def __init__(self, queries: Queries) -> None:
        super().__init__(queries.per_batch, queries.world.bench.store)
        self._watched = queries

    def _messages(self, claims, driver, spark) -> Any:
        frame = super()._messages(claims, driver, spark)
        self._watched.claims += claims
        frame.collect()
        self._watched.was_read()
        return frame


def launched(world: World, paths: list[str]) -> list[str]:
    assert world.launch(paths) == "started"
    return paths


def test_no_query_starts_on_a_message_that_another_worker_has_finished_while_it_was_read():
    """[P4] Its payloads took longer to read than its lease lasts: the driver's machine stood still."""
    world = World()
    (path,) = launched(world, [world.queue.enqueue({"do": "ok"})])

    def elsewhere() -> None:
        world.bench.clock.advance(130)
        world.sweeper.sweep()
        world.bench.clock.advance(10)
        other = world.bench.queue("exports", worker_id="other", **world.options)
        claim = other.claim(path, read_first=True)
        assert claim is not None
        other.complete(claim, "theirs")

    queries = Queries(world, elsewhere)

    assert queries.driver.drain() == {"lost": 1}
    assert queries.lines == []
    assert world.records()[path].result == "theirs"


def test_a_query_leaves_out_what_was_lost_while_it_was_read_and_runs_the_rest():
    world = World()
    launched(world, [world.queue.enqueue({"do": n}) for n in range(2)])
    queries = Queries(world, lambda: queries.claims[0].end())

    assert queries.driver.drain() == {"lost": 1, "completed": 1}
    _, kept = queries.claims
    assert queries.lines == [(kept.path, 0)]
    assert set(world.records()) == {kept.path}


def test_no_query_starts_on_a_partition_whose_lease_ran_out_while_it_was_read():
    """[P4] [P9] The partition's lease is that of all its messages."""
    world = World(partitions=1)
    path = world.queue.enqueue({"do": "ok"}, group="a")
    launched(world, [path])
    queries = Queries(world, lambda: world.bench.clock.advance(130))

    queries.driver.drain()

    # Not at first; when the partition was held anew, once.
    assert len(queries.claims) == 2
    assert not queries.claims[0].is_alive()
    assert queries.lines == [(path, 0)]
    # The lease of the partition said that it was taken, and nobody could know more.
    assert world.queue.outcome_of(path).attempt == 2
