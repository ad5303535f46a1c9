"""Producers on an event loop: the same calls, awaited; the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import s3queue
from s3queue import InvalidPriority, InvalidRequest, Queue, define
from s3queue.stores.memory import MemoryStore

asked_by: contextvars.ContextVar[str] = contextvars.ContextVar("asked_by", default="nobody")


def test_a_message_is_stored_with_its_options_and_its_path_returned(queue):
    path = asyncio.run(queue.aenqueue({"id": 17}, priority=200, name="order-17"))

    assert path == "messages/p200/order-17"
    assert queue.status(path).state == "pending"


def test_the_family_does_what_its_sisters_do(queue):
    async def produce() -> tuple[list[str], str, str]:
        paths = await queue.aenqueue_many([{"id": n} for n in range(4)], per_object=2)
        single = await queue.aenqueue({})
        return paths, (await queue.astatus(single)).state, (await queue.acancel(single)).outcome

    paths, state, outcome = asyncio.run(produce())

    assert (len(paths), state, outcome) == (2, "pending", "cancelled")


def test_what_is_wrong_is_raised_where_it_is_awaited(queue):
    with pytest.raises(InvalidPriority):
        asyncio.run(queue.aenqueue({}, priority=256))


def test_the_loop_goes_on_while_s3_does_not_answer():
    answered, seen = threading.Event(), []

    def around(operation, key, perform):
        seen.append(asked_by.get())
        assert answered.wait(20), "the loop was blocked: nobody let the request end"
        return perform()

    queue = Queue(store=MemoryStore(around=around), name="orders")

    async def produce() -> list[str]:
        asked_by.set("the request of Ada")
        waiting = [asyncio.create_task(queue.aenqueue(number)) for number in range(8)]
        while len(seen) < len(waiting):
            await asyncio.sleep(0)
        answered.set()
        return await asyncio.gather(*waiting)

    assert len(set(asyncio.run(produce()))) == 8
    assert set(seen) == {"the request of Ada"}


def test_a_call_that_has_begun_goes_on_when_its_task_is_cancelled():
    began, answered, ended = threading.Event(), threading.Event(), threading.Event()

    def around(operation, key, perform):
        began.set()
        answered.wait(20)
        try:
            return perform()
        finally:
            ended.set()

    queue = Queue(store=MemoryStore(around=around), name="orders")

    async def produce() -> None:
        task = asyncio.create_task(queue.aenqueue({}, name="x"))
        while not began.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answered.set()

    asyncio.run(produce())
    assert ended.wait(20)

    assert queue.status("messages/x").state == "pending"


def test_a_definition_checks_the_payload_first(monkeypatch):
    monkeypatch.setenv("S3QUEUE_URL", "memory://async-producers")
    orders = define("orders")

    @orders.handler
    def handle(body: int) -> None: ...

    assert asyncio.run(orders.aenqueue(17)).startswith("messages/")
    assert len(asyncio.run(orders.aenqueue_many([1, 2]))) == 1
    with pytest.raises(InvalidRequest, match="cannot take this payload"):
        asyncio.run(orders.aenqueue("seventeen"))


def test_whoever_awaits_nothing_does_not_import_asyncio():
    program = "import sys; from s3queue import Queue, connect, define; sys.exit('asyncio' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(Path(s3queue.__file__).parents[1])}

    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
