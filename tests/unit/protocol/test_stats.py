"""Stats: how much lies in each state, exact unless bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from s3queue import Queue, Stats
from s3queue.paths import batch_suffix, lines_of, named_at, partition_of
from s3queue.protocol import counting
from s3queue.worker.partition_run import run_partition
from support.workbench import Workbench


def _batch(bench: Workbench, queue: Queue, lines: int, *, bad: int) -> str:
    """The path of a batch of which the first lines failed."""
    (path,) = queue.enqueue_many([{"n": number} for number in range(lines)], per_object=lines)

    def handle(body: dict[str, int]) -> None:
        if body["n"] < bad:
            raise ValueError("no")

    bench.processor(queue, handle).run(path)
    return path


def test_stats_count_every_state(bench):
    queue = bench.queue(max_attempts=2)
    paths = [queue.enqueue(b"x") for _ in range(8)]
    queue.enqueue(b"later", delay=600)
    queue.complete(queue.claim(paths[0]))
    queue.fail(queue.claim(paths[1]), "dead", dead=True)
    queue.fail(queue.claim(paths[2]), "again", retry_after=300)
    queue.claim(paths[3])
    queue.claim(paths[4])
    bench.clock.advance(10)
    queue.enqueue(b"x")

    stats = queue.stats()

    assert stats == Stats(
        pending=4,
        delayed=1,
        processing=2,
        failed=1,
        completed=1,
        dead=1,
        oldest_seconds=10.0,
        newest_seconds=0.0,
        finished_per_minute=2,
        busy_seconds=10.0,
        pending_objects=5,
        processing_objects=3,
        finished_objects=2,
        at=bench.clock.now(),
    )
    assert stats.total == 10


def test_the_oldest_age_ignores_what_is_not_due_and_counts_delay_from_its_due_time(bench, queue):
    queue.enqueue(b"x", delay=100)
    bench.clock.advance(50)
    assert queue.stats().oldest_seconds is None
    bench.clock.advance(60)
    assert queue.stats().oldest_seconds == 10


def test_stats_of_more_than_a_page_are_exact_unless_bounded(bench, queue):
    for _ in range(2500):
        queue.enqueue(b"x")

    assert queue.stats().pending == 2500
    bounded = queue.stats(pages=1)
    assert (bounded.pending, bounded.exact) == (1000, False)


def test_a_batch_counts_as_its_lines_in_every_state(bench):
    dying, patient = bench.queue(max_attempts=1), bench.queue(max_attempts=5)
    dying.enqueue(b"single")
    dying.enqueue_many([{}] * 30, per_object=20)
    dying.enqueue_many([{}] * 7, delay=900)
    _batch(bench, dying, 12, bad=5)
    _batch(bench, patient, 40, bad=1)
    (held,) = dying.enqueue_many([{}] * 9)
    dying.claim(held)

    stats = dying.stats()
    assert (stats.pending, stats.delayed, stats.processing, stats.failed) == (31, 7, 9, 40)
    assert (stats.completed, stats.dead, stats.finished_per_minute) == (7, 5, 12)
    assert (stats.pending_objects, stats.processing_objects, stats.finished_objects) == (4, 2, 2)
    assert stats.at_least == ()
    swept = bench.sweeper(dying).sweep().stats
    assert swept is not None
    assert (swept.pending, swept.delayed, swept.processing, swept.failed) == (31, 7, 9, 40)
    assert Stats.from_bytes(swept.to_bytes(), "key") == swept


def test_a_batch_whose_name_does_not_tell_makes_its_count_a_lower_bound(bench, queue):
    bench.put("orders/messages/mine.ndjson", b"{}\n{}\n")
    bench.put("orders/delayed/20991116T101500Z/mine.ndjson", b"{}\n{}\n")
    assert queue.stats().at_least == ("delayed", "pending")
    assert (queue.stats().pending, queue.stats().is_exact("pending"), queue.stats().is_exact("dead")) == (
        1,
        False,
        True,
    )
    swept = bench.sweeper(queue).sweep().stats
    assert swept is not None
    assert Stats.from_bytes(swept.to_bytes(), "key").at_least == ("delayed", "pending")
    bench.processor(queue, lambda body: None).run("messages/mine.ndjson")
    assert queue.stats().at_least == ("completed", "delayed")


def test_dead_lines_are_read_within_a_bound(bench, monkeypatch):
    monkeypatch.setattr(counting, "LETTERS_READ", 2)
    queue = bench.queue(max_attempts=1)
    for _ in range(3):
        _batch(bench, queue, 10, bad=4)
    bench.store.take()
    stats = queue.stats()
    assert (stats.dead, stats.completed, stats.at_least) == (4 + 4 + 1, 30 - 9, ("dead",))
    assert bench.store.take()["head"] == 2


def test_what_waits_for_a_worker_that_never_comes_is_not_being_processed(bench, monkeypatch):
    queue = bench.queue(max_attempts=5)
    for _ in range(3):
        queue.fail(queue.claim(queue.enqueue(b"x")), "no", retry_after=1)
    busy = queue.enqueue(b"x")
    bench.clock.advance(120)
    bench.sweeper(queue).sweep()
    queue.claim(busy)
    assert not bench.keys("orders/retries/"), "the sweep has handed them over"
    assert (queue.stats().processing, queue.stats().failed) == (1, 3)
    monkeypatch.setattr(counting, "LEASES_READ", 2)
    assert (queue.stats().processing, queue.stats().failed) == (1, 3), "if all that are read wait, so do the others"


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("messages/a", 1),
        ("messages/a.100-lines.ndjson", 100),
        ("messages/a.ndjson", None),
        ("messages/a.100-lines.ndjson.lines", None),
        ("messages/a.0-lines.ndjson", None),
        ("messages/a.9999999-lines.ndjson", None),
        ("messages/a.99999999999-lines.ndjson", None),
        ("messages/100-lines.ndjson", None),
        ("messages/a.100-lines", 1),
    ],
)
def test_a_name_tells_how_many_lines_a_batch_has(path, lines):
    assert lines_of(path) == lines


def test_the_library_s_names_tell_their_lines_and_when_they_were_made(bench, queue):
    (path,) = queue.enqueue_many([{}] * 3)
    with queue.buffer() as buffer:
        buffer.enqueue({})
        buffer.enqueue({})
    assert path.endswith(batch_suffix(3))
    assert named_at(path) == bench.clock.now()
    assert queue.stats().pending == 5


def _outcomes(bench: Workbench, queue: Queue, *, dead: int = 0, completed: int = 0) -> None:
    for number in range(dead + completed):
        claim = queue.claim(queue.enqueue(number))
        assert claim
        _ = queue.fail(claim, "no", dead=True) if number < dead else queue.complete(claim)
        bench.clock.advance(1)


def test_letters_that_outlive_their_records_hide_no_completed_message(bench):
    queue = bench.queue(record_retention=100, dead_retention=1000)
    _outcomes(bench, queue, dead=3)
    _batch(bench, bench.queue(max_attempts=1), 10, bad=4)
    assert (queue.stats().completed, queue.stats().dead) == (6, 7)
    bench.clock.advance(101)
    assert queue.cleanup() == 4

    _outcomes(bench, queue, dead=1, completed=3)
    stats = queue.stats()
    assert (stats.completed, stats.dead, stats.finished_objects) == (3, 8, 8)
    assert stats.at_least == ()


def test_a_letter_of_a_group_outlives_its_journal(bench):
    queue = bench.queue(record_retention=100, dead_retention=1000, max_attempts=1)

    def run(many: int, *, bad: int) -> None:
        paths = [queue.enqueue({"n": number}, group="ada") for number in range(many)]

        def handle(body: dict[str, int]) -> None:
            if body["n"] < bad:
                raise ValueError("no")

        run_partition(
            bench.processor(queue, handle), partition_of(paths[0]), should_stop=lambda: False, count=lambda _: None
        )

    run(3, bad=3)
    assert (queue.stats().completed, queue.stats().dead) == (0, 3)
    bench.clock.advance(101)
    queue.cleanup()
    run(4, bad=1)
    assert (queue.stats().completed, queue.stats().dead) == (3, 4)


def test_letters_that_are_older_than_their_journal_are_no_completions(bench):
    """A holder writes the letters of a commit one by one, and then the journal."""
    queue = bench.queue(max_attempts=1)
    paths = [queue.enqueue(number, group="ada") for number in range(5)]

    def slow(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if key.startswith("orders/dead/"):
            bench.clock.advance(3)
        return perform()

    def handle(body: int) -> None:
        raise ValueError("no")

    bench.around = slow
    run_partition(
        bench.processor(queue, handle), partition_of(paths[0]), should_stop=lambda: False, count=lambda _: None
    )
    bench.around = None
    assert (queue.stats().completed, queue.stats().dead) == (0, 5)
