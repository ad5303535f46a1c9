"""`async` handlers run to their end before anything is recorded; what would run nothing is refused."""

from __future__ import annotations

import asyncio
import functools
from contextvars import ContextVar
from typing import Any

import pytest

from s3queue import Context, InvalidRequest, Reject, define
from support.workbench import Workbench


@pytest.fixture
def bench() -> Workbench:
    return Workbench()


def test_a_coroutine_has_run_when_its_message_is_completed(bench: Workbench) -> None:
    queue = bench.queue()
    seen: list[Any] = []

    async def handler(body: dict, context: Context) -> dict:
        await asyncio.sleep(0)
        seen.append((body, context.attempt))
        return {"done": True}

    path = queue.enqueue({"n": 1})

    assert bench.processor(queue, handler).run(path) == "completed"
    assert seen == [({"n": 1}, 1)]
    assert queue.status(path).record.result == {"done": True}


def test_what_a_coroutine_raises_counts(bench: Workbench) -> None:
    queue = bench.queue()

    async def handler(body: dict) -> None:
        await asyncio.sleep(0)
        raise Reject("no") if body["n"] else ConnectionError("later")

    processor = bench.processor(queue, handler)
    assert processor.run(queue.enqueue({"n": 0})) == "retried"
    assert processor.run(queue.enqueue({"n": 1})) == "dead"


def test_the_lines_of_a_batch_run_one_after_the_other_in_one_loop(bench: Workbench) -> None:
    queue = bench.queue()
    loops: set[int] = set()

    async def handler(body: int) -> None:
        loops.add(id(asyncio.get_running_loop()))

    (path,) = queue.enqueue_many([1, 2, 3])
    assert bench.processor(queue, handler).run(path) == "completed"
    assert len(loops) == 1


def test_a_coroutine_runs_also_where_a_loop_is_running(bench: Workbench) -> None:
    """In an `async` test, say. Its own loop is one for all messages, as elsewhere."""
    queue = bench.queue(max_attempts=2)
    told: ContextVar[str] = ContextVar("told")
    seen: list[tuple[int, str]] = []

    async def handler(body: int) -> int:
        await asyncio.sleep(0)
        seen.append((id(asyncio.get_running_loop()), told.get()))
        if body == 2:
            raise ConnectionError("later")
        return body

    async def main() -> tuple[int, list[str | None]]:
        told.set("by the test")
        return id(asyncio.get_running_loop()), [processor.run(path) for path in paths]

    processor, paths = bench.processor(queue, handler), [queue.enqueue(str(number)) for number in range(3)]
    outer, endings = asyncio.run(main())

    assert endings == ["completed", "completed", "retried"]
    assert [queue.status(path).record.result for path in paths[:2]] == [0, 1]
    assert {what for _, what in seen} == {"by the test"}
    assert len({loop for loop, _ in seen} | {outer}) == 2


class Callee:
    async def __call__(self, body: bytes) -> str:
        await asyncio.sleep(0)
        return body.decode()


async def _joined(prefix: str, body: bytes) -> str:
    return prefix + body.decode()


@pytest.mark.parametrize(
    ("handler", "result"),
    [(Callee(), "x"), (functools.partial(_joined, "p"), "px"), (lambda body: Callee()(body), "x")],
    ids=["an object", "a partial", "a function that returns a coroutine"],
)
def test_whatever_returns_a_coroutine_is_awaited(bench: Workbench, handler: Any, result: str) -> None:
    queue = bench.queue()

    def handle(body: bytes) -> Any:
        return handler(body)

    path = queue.enqueue(b"x")
    assert bench.processor(queue, handle).run(path) == "completed"
    assert queue.status(path).record.result == result


def _generator(body: bytes) -> Any:
    yield body


async def _async_generator(body: bytes) -> Any:
    yield body


class GeneratingCallee:
    def __call__(self, body: bytes) -> Any:
        yield body


@pytest.mark.parametrize(
    "handler",
    [_generator, _async_generator, GeneratingCallee(), functools.partial(_generator)],
    ids=["a generator", "an async generator", "an object", "a partial"],
)
def test_a_generator_is_refused_when_it_is_decorated(handler: Any) -> None:
    with pytest.raises(InvalidRequest, match="is a generator"):
        define("orders").handler(handler)


def test_a_generator_that_comes_out_of_a_function_is_a_failed_attempt(bench: Workbench) -> None:
    queue = bench.queue()
    path = queue.enqueue({})

    assert bench.processor(queue, lambda body: _generator(body)).run(path) == "retried"
    assert "has run nothing" in queue.status(path).lease.failure.message
