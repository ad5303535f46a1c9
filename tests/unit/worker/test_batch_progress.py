"""Batches that take long: they keep their lease, lose no line to a crash, and need little memory."""

from __future__ import annotations

import dataclasses
import io
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from s3queue import (
    Context,
    DeadLetters,
)
from s3queue.store import Object
from support.killed_store import Killed
from support.payloads import put_batch
from support.workbench import Workbench


def test_a_batch_that_runs_out_of_time_goes_on_where_it_stopped_and_burns_no_attempt(bench):  # [P5]
    queue = bench.queue(max_attempts=2)
    path = put_batch(bench, list(range(20)))
    runs: list[tuple[int, int]] = []
    in_this_invocation: list[int] = []

    def handler(body: Any, context: Context) -> None:
        runs.append((context.attempt, body))
        in_this_invocation.append(body)
        if body == 2:
            raise ValueError("two")

    outcomes = []
    while not outcomes or outcomes[-1] == "released":
        in_this_invocation.clear()
        processor = bench.processor(queue, handler, should_stop=lambda: len(in_this_invocation) >= 3)
        outcomes.append(processor.run(path, read_first=bool(outcomes)))
        bench.clock.advance(1)

    # Twenty lines in invocations of three, all of them attempt 1, each line once.
    assert outcomes == ["released"] * 6 + ["retried"]
    assert runs == [(1, number) for number in range(20)]
    bench.clock.advance(10)
    assert bench.processor(queue, handler).run(path, read_first=True) == "completed"
    assert runs[20:] == [(2, 2)]
    assert [line.number for line in DeadLetters(queue).lines(f"{path}.lines")] == [3]


def test_even_the_shortest_invocation_gets_one_line_done(bench, queue):
    path = put_batch(bench, [1, 2, 3])
    runs = []
    processor = bench.processor(queue, runs.append, should_stop=lambda: True)

    for read_first in (False, True, True, True):
        processor.run(path, read_first=read_first)
        bench.clock.advance(1)

    assert runs == [1, 2, 3]
    assert queue.status(path).state == "completed"


def test_a_long_batch_keeps_its_lease_and_notes_what_is_done(bench, queue):  # [P2]
    path = put_batch(bench, list(range(30)))
    rival = bench.sweeper(bench.queue(worker_id="sweeper"))
    noted = []

    def handler(body: Any) -> None:
        bench.clock.advance(10)
        rival.sweep()
        lease = queue.status(path).lease
        noted.append(len(lease.lines.done) if lease.lines else 0)

    assert bench.processor(queue, handler).run(path) == "completed"
    assert len(queue.status(path).record.attempts) == 1
    assert max(noted) >= 28


def test_after_a_crash_only_the_lines_that_were_not_noted_run_again(bench, queue):  # [P6]
    path = put_batch(bench, list(range(10)))
    runs: list[int] = []

    def handler(body: Any, context: Context) -> None:
        runs.append(body)
        bench.clock.advance(10)
        if body == 6 and context.attempt == 1:
            raise Killed

    with pytest.raises(Killed):
        bench.processor(queue, handler).run(path)
    noted = len(queue.status(path).lease.lines.done)
    assert noted >= 4
    bench.clock.advance(60)
    bench.settle(queue, handler)

    assert runs[7:] == list(range(noted, 10))
    assert queue.status(path).record.lines["completed"] == 10


def test_a_batch_that_crashes_in_its_last_attempt_loses_no_line(bench):  # [P1]
    queue = bench.queue(max_attempts=1)
    path = put_batch(bench, list(range(6)))

    def handler(body: Any) -> None:
        bench.clock.advance(14)
        if body == 1:
            raise ValueError("one")
        if body == 4:
            raise Killed

    with pytest.raises(Killed):
        bench.processor(queue, handler).run(path)
    done = queue.status(path).lease.lines.done
    bench.clock.advance(60)
    bench.sweeper(queue).sweep()

    assert [letter.path for letter in DeadLetters(queue).list()] == [f"{path}.lines"]
    lines = {int(line.body): line.failure.type for line in DeadLetters(queue).lines(f"{path}.lines")}
    assert lines[1] == "ValueError"
    assert set(lines.values()) == {"ValueError", "LeaseExpired"}
    assert sorted([*lines, *(number - 1 for number in done)]) == list(range(6))


def test_a_batch_that_was_deleted_before_it_could_be_read_is_no_crash(bench, queue):  # [P1]
    path = put_batch(bench, b'"' + b"x" * (9 * 1024 * 1024) + b'"\n')
    claim = queue.claim(path)
    bench.memory.delete(f"orders/{path}")

    assert bench.processor(queue, lambda body: None).process(claim) == "retried"
    bench.clock.advance(60)
    bench.settle(queue, lambda body: None)
    assert queue.status(path).record.failure.type == "MessageVanished"


class _OneLargeObject:
    """A store with one object that is far too large for memory: its bytes are made as they are read."""

    def __init__(self, bench: Workbench, key: str, line: bytes, lines: int) -> None:
        self._inner, self._key, self._line, self._lines = bench.memory, key, line, lines
        self.url = bench.memory.url
        bench.memory.put(key, b"a stand-in")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, key: str, *, if_match: str | None = None) -> Object | None:
        found = self._inner.open(key, if_match=if_match)
        if key != self._key or found is None:
            return found
        stream = io.BufferedReader(_Repeated(self._line, self._lines))
        return dataclasses.replace(found, size=len(self._line) * self._lines, stream=stream)


class _Repeated(io.RawIOBase):
    def __init__(self, line: bytes, lines: int) -> None:
        self._left: Iterator[bytes] = iter([line] * lines)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while len(self._rest) < len(buffer) and (more := next(self._left, b"")):
            self._rest += more
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


def test_a_batch_of_200_mb_is_worked_on_in_a_fraction_of_its_size(bench):
    line = b'"' + b"x" * 10_237 + b'"\n'
    queue = bench.queue()
    queue.store = _OneLargeObject(bench, "orders/messages/huge.ndjson", line, 20_000)
    seen = 0

    def handler(body: bytes) -> None:
        nonlocal seen
        seen += len(body) + 1

    processor = bench.processor(queue, handler)
    tracemalloc.start()
    try:
        assert processor.run("messages/huge.ndjson") == "completed"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert seen == len(line) * 20_000 > 200_000_000
    assert peak < 40_000_000


def test_lease_lost_inside_a_batch_stops_it(bench, queue):  # [P4]
    path = put_batch(bench, list(range(5)))
    runs = []

    def handler(body: Any) -> None:
        runs.append(body)
        if body == 2:
            bench.clock.advance(60)
            bench.sweeper(bench.queue(worker_id="sweeper")).sweep()

    assert bench.processor(queue, handler).run(path) == "lost"
    assert runs == [0, 1, 2]


def nested(depth: int) -> list:
    deep: list = []
    for _ in range(depth - 1):
        deep = [deep]
    return deep


@pytest.mark.parametrize("depth", [100, 101, 500])
def test_a_deep_result_does_not_make_what_is_written_about_it_unreadable(bench, depth):
    """[P3] A record or lease that cannot be read back counts as garbage: it would be replaced, or bury the batch."""
    queue = bench.queue()
    single = queue.enqueue({})
    queue.complete(queue.claim(single), nested(depth))
    assert queue.status(single).record.result == (nested(depth) if depth == 100 else None)
    (path,) = queue.enqueue_many([1, 2])

    def handler(number: int, context: Context) -> list:
        if (number, context.attempt) == (2, 1):
            raise ValueError("once")
        return nested(depth)

    processor = bench.processor(queue, handler)
    assert processor.run(path) == "retried"
    bench.clock.advance(60)
    assert queue.status(path).state == "waiting"
    assert processor.run(path, read_first=True) == "completed"

    assert queue.status(path).record.lines.get("results") == (
        [[1, nested(depth)], [2, nested(depth)]] if depth == 100 else None
    )
