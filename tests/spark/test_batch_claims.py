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
    """A run whose queries complete everything. Something happens once, before or after the payloads are read."""

    def __init__(
        self, world: World, *, before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None
    ) -> None:
        self.world = world
        self.lines: list[tuple[str, int]] = []
        self.claims: list[Any] = []
        self.happens = [before, after]
        self.driver = world.driver(work=Reading(self))

    def per_batch(self, spark: Any, frame: Any) -> Any:
        rows = frame.collect()
        self.lines += [(row.path, row.line) for row in rows]
        return {(row.path, row.line): ("done", None, False) for row in rows}


class Reading(FakeBatches):
    def __init__(self, queries: Queries) -> None:
        super().__init__(queries.per_batch, queries.world.bench.store)
        self._watched = queries

    def _messages(self, claims, driver, spark) -> Any:
        frame = super()._messages(claims, driver, spark)
        self._watched.claims += claims
        before, after = self._watched.happens
        self._watched.happens = [lambda: None] * 2
        before()
        frame.collect()
        after()
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

    queries = Queries(world, after=elsewhere)

    assert queries.driver.drain() == {"lost": 1}
    assert queries.lines == []
    assert world.records()[path].result == "theirs"


def test_a_query_leaves_out_what_was_lost_while_it_was_read_and_runs_the_rest():
    world = World()
    launched(world, [world.queue.enqueue({"do": n}) for n in range(2)])
    queries = Queries(world, after=lambda: queries.claims[0].end())

    assert queries.driver.drain() == {"lost": 1, "completed": 1}
    _, kept = queries.claims
    assert queries.lines == [(kept.path, 0)]
    assert set(world.records()) == {kept.path}


def test_no_query_starts_on_a_partition_whose_lease_ran_out_while_it_was_read():
    """[P4] [P9] The partition's lease is that of all its messages."""
    world = World(partitions=1)
    path = world.queue.enqueue({"do": "ok"}, group="a")
    launched(world, [path])
    queries = Queries(world, after=lambda: world.bench.clock.advance(130))

    queries.driver.drain()

    # Not at first; when the partition was held anew, once.
    assert len(queries.claims) == 2
    assert not queries.claims[0].is_alive()
    assert queries.lines == [(path, 0)]
    # The lease of the partition said that it was taken, and nobody could know more.
    assert world.queue.outcome_of(path).attempt == 2


BATCH = b'{"do":1}\n{"do":2}\n'


@pytest.mark.parametrize("is_put_anew", [False, True])
@pytest.mark.parametrize("is_batch", [False, True])
def test_what_was_deleted_or_put_anew_before_it_was_read_is_not_recorded_as_completed(is_batch, is_put_anew):
    """[P1] [P3] A batch of which no line is left to run looks alike, and is completed."""
    world = World()
    name, body = ("a.ndjson", BATCH) if is_batch else ("a", b'{"do":1}')
    (path,) = launched(world, [world.queue.enqueue(body, name=name)])

    def disturb() -> None:
        if is_put_anew:
            world.bench.put(world.queue.keys.message(path), body.replace(b"1", b"3"))
        else:
            world.bench.store.delete(world.queue.keys.message(path))

    queries = Queries(world, before=disturb)

    assert queries.driver.drain() == {"lost": 1}
    assert (queries.lines, world.records()) == ([], {})
    # The sweeper sees to it: another run starts what was PUT anew, and what was deleted is not said to be completed.
    world.bench.clock.advance(130)
    world.settle()
    assert bool(world.starts) is is_put_anew
    outcomes = [record.outcome for record in world.records().values()]
    assert outcomes == ["completed"] if is_put_anew else "completed" not in outcomes


def test_what_was_deleted_before_it_was_read_takes_no_neighbour_with_it():
    world = World()
    paths = launched(world, [world.queue.enqueue(BATCH, name=f"{name}.ndjson") for name in "ab"])
    queries = Queries(world, before=lambda: world.bench.store.delete(world.queue.keys.message(paths[0])))

    assert queries.driver.drain() == {"lost": 1, "completed": 1}
    assert queries.lines == [(paths[1], 1), (paths[1], 2)]
    assert set(world.records()) == {paths[1]}


def test_a_batch_without_lines_is_completed():
    world = World()
    world.bench.put("exports/messages/empty.ndjson", b"")
    launched(world, ["messages/empty.ndjson"])
    queries = Queries(world)

    assert queries.driver.drain() == {"completed": 1}
    assert world.records()["messages/empty.ndjson"].lines["total"] == 0


def test_a_batch_whose_lines_have_all_ended_is_completed():
    """Its driver died between the last line's outcome and the record."""
    world = World()
    (path,) = launched(world, [world.queue.enqueue(BATCH, name="a.ndjson")])

    def end_all() -> None:
        for line in (1, 2):
            queries.claims[0].lines.complete(line, "before")

    queries = Queries(world)
    begin = queries.driver.begin
    queries.driver.begin = lambda claims: (queries.claims.extend(claims), end_all(), begin(claims))

    assert queries.driver.drain() == {"completed": 1}
    assert queries.lines == []
    assert world.records()[path].lines["total"] == 2


@pytest.mark.parametrize("options", [{}, {"partitions": 2}])
def test_the_driver_keeps_no_payload_that_its_executors_read(options):
    world = World(messages_per_run=10, **options)
    paths = [world.queue.enqueue({"do": "ok"}) for _ in range(4)]
    paths.append(world.queue.enqueue(b"1\n2\n", name="lines.ndjson"))
    launched(world, paths)
    world.queue.enqueue({"do": "ok"})
    queries = Queries(world)

    assert queries.driver.drain() == {"completed": 6}

    assert [claim.message.inline for claim in queries.claims] == [None] * 6


@pytest.mark.parametrize("lives", [0, 1])
def test_what_ran_out_before_its_query_is_not_begun_and_not_charged(lives):
    """[P5] The driver's machine stood still. Nobody looks at the leases before it goes on, and reads the others."""
    world = World(max_attempts=1)
    paths = launched(world, [world.queue.enqueue({"do": n}) for n in range(3)])
    queries = Queries(world, before=world.sweeper.sweep)
    driver = queries.driver
    run = driver._work.run

    def late(feed: Any, of: Any) -> None:
        for path in paths[:lives]:
            driver.queue.extend(next(claim for claim in driver.heartbeat.held() if claim.path == path), 600)
        world.bench.clock.advance(130)
        run(feed, of)

    driver._work.run = late  # type: ignore[method-assign]
    driver.drain()

    assert queries.lines[:lives] == [(path, 0) for path in paths[:lives]]
    world.settle()
    ended = {path: (record.outcome, record.attempt) for path, record in world.records().items()}
    assert ended == dict.fromkeys(paths, ("completed", 1))


def test_what_was_begun_and_left_out_of_its_query_is_not_charged():
    """[P5] Its lease ran out while it was read: nobody but the driver knows that it has not run."""
    world = World(max_attempts=1)
    paths = launched(world, [world.queue.enqueue({"do": n}) for n in range(3)])
    queries = Queries(world, after=lambda: world.bench.clock.advance(130))

    assert queries.driver.drain() == {"lost": 3}
    assert queries.lines == []

    world.settle()
    ended = {path: (record.outcome, record.attempt) for path, record in world.records().items()}
    assert ended == dict.fromkeys(paths, ("completed", 1))
