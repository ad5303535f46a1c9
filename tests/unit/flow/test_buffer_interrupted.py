"""A buffer that is interrupted, by Ctrl-C, a signal that ends the process, or a fork, stores what it has, once."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

import s3queue
from s3queue import Queue, Worker, define
from s3queue.errors import AccessDenied
from s3queue.flow.buffer import Buffer
from s3queue.stores.memory import MemoryStore
from support import threads
from support.manual_clock import StandingClock


class Scene:
    """A queue whose time stands still, so that only what the test calls stores a batch."""

    def __init__(self) -> None:
        self.clock = StandingClock()
        self.queue = Queue(store=MemoryStore(clock=self.clock, around=self._around), name="orders", clock=self.clock)
        #: Called with each request, and what performs it.
        self.around: Callable[..., object] = lambda operation, key, perform: perform()
        self.requests: list[str] = []

    def _around(self, operation, key, perform):
        self.requests.append(operation)
        return self.around(operation, key, perform)

    def stored(self) -> list[list[object]]:
        found = [self.queue.store.open(entry.key) for entry in self.queue.store.list("orders/messages/").objects]
        return sorted(([json.loads(line) for line in batch.read().splitlines()] for batch in found if batch), key=str)

    def interrupt_once(self, *, after: bool) -> None:
        """The next PUT is interrupted before it reaches the store, or on its way back."""

        def around(operation, key, perform):
            if operation != "put":
                return perform()
            self.around = lambda operation, key, perform: perform()
            if after:
                perform()
            raise SystemExit

        self.around = around


@pytest.fixture
def scene() -> Scene:
    return Scene()


def impatient(buffer: Buffer, then: Callable[[], object] = lambda: None) -> None:
    """Fail where a flush would wait for ever; `then` is called when it begins to wait."""

    class Impatient(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            then()
            assert super().wait(threads.PATIENCE), "nobody will end this"
            return True

    buffer._changed = Impatient(buffer._mutex)


@pytest.mark.parametrize("after", [False, True], ids=["not stored", "stored"])
@pytest.mark.parametrize("call", ["flush", "close"])
def test_a_batch_whose_put_is_interrupted_is_stored_once_by_the_next_close(scene, call, after):
    """It was dropped, and the exit, or Ctrl-C, was taken for its error."""
    buffer = scene.queue.buffer()
    futures = [buffer.enqueue(1), buffer.enqueue(2)]
    scene.interrupt_once(after=after)
    with pytest.raises(SystemExit):
        getattr(buffer, call)()
    assert not any(future.done() for future in futures)

    impatient(buffer)
    buffer.close()

    assert [future.result(0).line for future in futures] == [1, 2]
    assert scene.stored() == [[1, 2]]
    assert buffer._pending == buffer._bytes == 0


def test_an_interrupted_batch_that_has_run_meanwhile_is_not_put_anew(scene):
    """A PUT that nobody saw the answer of may have stored it long ago, and it is gone when it was finished."""
    orders, seen = define("orders"), []

    @orders.handler
    def handle(body: int) -> None:
        seen.append(body)

    buffer = scene.queue.buffer()
    future = buffer.enqueue(1)
    scene.interrupt_once(after=True)
    with pytest.raises(SystemExit):
        buffer.flush()
    Worker(scene.queue, orders).run_until_empty()
    buffer.close()
    Worker(scene.queue, orders).run_until_empty()

    assert seen == [1]
    assert future.result(0).line == 1


def test_a_buffer_whose_close_was_interrupted_can_be_used_and_closed(scene):
    buffer = scene.queue.buffer(linger=60.0)
    buffer.enqueue(1)
    first = buffer._lingering
    scene.interrupt_once(after=False)
    with pytest.raises(SystemExit):
        buffer.close()
    # It saw that the buffer was closed, or not: both may be.
    threads.eventually(lambda: not first.is_alive() or not buffer._opened.is_set())
    future = buffer.enqueue(2)
    assert buffer._lingering.is_alive()
    buffer.close()

    assert future.done()
    assert scene.stored() == [[1], [2]]


def test_a_flush_goes_on_with_a_batch_whose_thread_was_interrupted(scene):
    """It waited for that thread, which had left the batch."""
    is_waited_for = threading.Event()

    def around(operation, key, perform):
        if operation == "put" and not is_waited_for.is_set():
            assert is_waited_for.wait(threads.PATIENCE)
            raise KeyboardInterrupt
        return perform()

    scene.around = around
    buffer = scene.queue.buffer(per_object=1)
    impatient(buffer, then=is_waited_for.set)
    future = buffer.enqueue(1)
    threads.eventually(lambda: scene.requests)
    buffer.flush()

    assert future.result(0).line == 1
    assert scene.stored() == [[1]]
    buffer.close()


@pytest.mark.parametrize("step", ["_untold", "_under_way"])
def test_ctrl_c_while_a_batch_is_taken_loses_nothing(scene, step):
    """After the first of two steps it was nobody's: not open any more, and no flush looked for it."""

    class Pressed(set):
        def add(self, batch):
            super().add(batch)
            if not is_pressed:
                is_pressed.append(True)
                raise KeyboardInterrupt

    is_pressed: list[bool] = []
    buffer = scene.queue.buffer()
    future = buffer.enqueue(1)
    setattr(buffer, step, Pressed())
    with pytest.raises(KeyboardInterrupt):
        buffer.flush()
    impatient(buffer)
    buffer.close()

    assert future.done()
    assert scene.stored() == [[1]]


def exit_by(error: type[BaseException]) -> Callable[[object], None]:
    def callback(future: object) -> None:
        raise error

    return callback


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_callback_that_exits_ends_the_flush_after_all_futures_are_told(scene, error):
    """The others of its batch were never told, and closing the buffer waited for that for ever."""
    buffer = scene.queue.buffer()
    futures = [buffer.enqueue(number) for number in range(5)]
    futures[1].add_done_callback(exit_by(error))
    futures[3].add_done_callback(exit_by(ZeroDivisionError))
    with pytest.raises(error):
        buffer.flush()

    assert [future.result(0).line for future in futures] == [1, 2, 3, 4, 5]
    assert not buffer._is_telling
    impatient(buffer)
    buffer.close()
    assert scene.requests == ["put"]


def test_a_callback_that_exits_in_the_buffers_own_thread_ends_nothing_else(scene):
    is_open = threading.Event()
    scene.around = lambda operation, key, perform: is_open.wait(threads.PATIENCE) and perform()
    buffer = scene.queue.buffer(per_object=3, concurrency=1)
    futures = [buffer.enqueue(number) for number in range(6)]
    futures[0].add_done_callback(exit_by(SystemExit))
    impatient(buffer)
    is_open.set()
    buffer.close()

    assert [future.result(0).line for future in futures] == [1, 2, 3, 1, 2, 3]


def test_a_batch_that_was_not_stored_tells_all_futures_so_whatever_their_callbacks_do(scene):
    def around(operation, key, perform):
        raise AccessDenied("no")

    scene.around = around
    buffer = scene.queue.buffer()
    futures = [buffer.enqueue(number) for number in range(3)]
    futures[0].add_done_callback(exit_by(SystemExit))
    with pytest.raises(SystemExit):
        buffer.flush()

    assert [str(future.exception(0)) for future in futures] == ["no"] * 3
    with pytest.raises(AccessDenied):
        buffer.close()


def test_a_future_that_is_told_when_ctrl_c_comes_is_told_again(scene, monkeypatch):
    """Ctrl-C may come before the future has noted its result, or while the next one is fetched."""
    buffer = scene.queue.buffer()
    futures = [buffer.enqueue(number) for number in range(3)]
    is_pressed: list[bool] = []

    def set_result(future, result):
        if future is futures[1] and not is_pressed:
            is_pressed.append(True)
            raise KeyboardInterrupt
        return real(future, result)

    real = Future.set_result
    monkeypatch.setattr(Future, "set_result", set_result)
    with pytest.raises(KeyboardInterrupt):
        buffer.flush()

    assert [future.result(0).line for future in futures] == [1, 2, 3]
    buffer.close()


def test_sigterm_that_becomes_an_exit_while_a_batch_is_put_loses_nothing():
    """As docs/queues.md says: in a process of its own, which ends by the signal, and closes its buffer at exit."""
    program = """
import atexit, os, signal, sys
from s3queue import Queue
from s3queue.stores.memory import MemoryStore

def around(operation, key, perform):
    if operation == "put" and not asked:
        asked.append(key)
        os.kill(os.getpid(), signal.SIGTERM)
    return perform()

asked = []
queue = Queue(store=MemoryStore(around=around), name="orders")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
atexit.register(lambda: print(queue.stats().pending, future.done()))
with queue.buffer(linger=3600) as buffer:
    future = buffer.enqueue({"n": 1})
print("not reached")
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(s3queue.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("1 True\n", "", 0)


# A fork


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_in_a_child_process_a_buffer_begins_empty_and_with_threads_of_its_own(scene):
    """The child stored what its parent stored as well, and waited for threads and a mutex that only the parent had."""
    buffer = scene.queue.buffer(per_object=2)
    for number in range(2):
        buffer.enqueue(number)
    buffer.flush()
    future = buffer.enqueue({"of": "the parent"})
    with buffer._mutex:
        child = os.fork()
        if child == 0:
            # It ends with an error if it waits for ever.
            signal.alarm(int(threads.PATIENCE))
            try:
                first, second = buffer.enqueue(2), buffer.enqueue(3)
                assert first.result().path == second.result().path
                third = buffer.enqueue(4)
                assert buffer._lingering.is_alive()
                buffer._close_at_exit()
                assert third.done()
                assert not future.done()
                assert scene.stored() == [[0, 1], [2, 3], [4]]
                os._exit(0)
            finally:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    buffer.close()

    assert future.done()
    assert scene.stored() == [[0, 1], [{"of": "the parent"}]]


def test_a_buffer_that_is_closed_is_not_kept_for_a_fork(scene):
    buffer = scene.queue.buffer()
    buffer.enqueue(1)
    lingering, kept = buffer._lingering, weakref.ref(buffer)
    buffer.close()
    lingering.join(threads.PATIENCE)
    del buffer
    gc.collect()

    assert kept() is None
