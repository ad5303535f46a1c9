"""The buffered producer: hundreds of messages in one PUT, a future for each, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path

import pytest

import s3queue
from s3queue import InvalidRequest, Queue, QueueSettings, Unavailable
from s3queue.errors import MessageTooLarge, QueueFull
from s3queue.stores.memory import MemoryStore
from support import threads
from support.manual_clock import ManualClock, StandingClock

#: A batch that nobody closes goes after this, by the test's clock.
LINGER = 60.0


class SteppedClock(ManualClock):
    """One in which a sleep ends when the test has let so much time pass."""

    def __init__(self) -> None:
        super().__init__()
        self._passing = threading.Condition()
        self.sleepers = 0

    def sleep(self, seconds: float) -> None:
        with self._passing:
            until = self.monotonic() + seconds
            self.sleepers += 1
            self._passing.notify_all()
            self._passing.wait_for(lambda: self.monotonic() >= until, timeout=30)
            self.sleepers -= 1

    def pass_(self, seconds: float) -> None:
        """Once somebody sleeps, let this much time pass."""
        with self._passing:
            assert self._passing.wait_for(lambda: self.sleepers > 0, timeout=30)
            self.advance(seconds)
            self._passing.notify_all()


@pytest.fixture
def slow() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def queue(slow: SteppedClock) -> Queue:
    return Queue(store=MemoryStore(clock=slow), name="orders", clock=slow)


def lines(queue: Queue, path: str) -> list[object]:
    found = queue.store.open(queue.keys.message(path))
    assert found
    return [json.loads(line) for line in found.read().splitlines()]


def paths(queue: Queue) -> list[str]:
    return [entry.key.removeprefix("orders/") for entry in queue.store.list("orders/messages/").objects]


def test_a_full_batch_is_stored_at_once_and_its_futures_name_path_and_line(queue):
    with queue.buffer(linger=LINGER, per_object=3) as buffer:
        futures = [buffer.enqueue({"n": number}) for number in range(3)]
        stored = [future.result(30) for future in futures]

    (path,) = paths(queue)
    assert path.endswith(".ndjson")
    assert stored == [(path, 1), (path, 2), (path, 3)]
    assert lines(queue, path) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_batch_that_is_not_full_is_stored_after_its_linger_and_not_before(queue, slow):
    with queue.buffer(linger=LINGER) as buffer:
        future = buffer.enqueue({"n": 1})
        slow.pass_(LINGER - 1)
        assert not future.done()
        slow.pass_(1)
        assert future.result(30).line == 1
        second = buffer.enqueue({"n": 2})
        slow.pass_(LINGER)
        assert second.result(30).path != future.result().path


def test_leaving_the_with_block_stores_what_is_left(queue):
    with queue.buffer(linger=LINGER) as buffer:
        futures = [buffer.enqueue(str(number)) for number in range(7)]

    assert {future.result(0).path for future in futures} == set(paths(queue))
    assert lines(queue, paths(queue)[0]) == list(range(7))


def test_what_was_added_is_stored_also_if_the_block_raises(queue):
    def fail() -> None:
        with queue.buffer(linger=LINGER) as buffer:
            buffer.enqueue({"n": 1})
            raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="own"):
        fail()

    assert len(paths(queue)) == 1


def test_flush_stores_and_the_buffer_goes_on(queue):
    with queue.buffer(linger=LINGER) as buffer:
        first = buffer.enqueue("1")
        buffer.flush()
        assert first.done()
        buffer.enqueue("2")
    assert len(paths(queue)) == 2


def test_a_worker_runs_every_body(bench):
    queue = bench.queue()
    with queue.buffer(linger=LINGER, per_object=4) as buffer:
        for number in range(10):
            buffer.enqueue({"n": number})
    seen: list[int] = []

    bench.settle(queue, lambda body: seen.append(body["n"]))

    assert sorted(seen) == list(range(10))


@pytest.mark.parametrize("body", [b"two\nlines", "", "  ", b"\r", {"a": object()}, float("nan"), "\ud800"])
def test_a_body_that_cannot_be_a_line_is_refused_at_once_and_the_others_are_stored(queue, body):
    with queue.buffer(linger=LINGER) as buffer:
        kept = buffer.enqueue({"n": 1})
        with pytest.raises(InvalidRequest, match="line"):
            buffer.enqueue(body)
    assert lines(queue, kept.result(0).path) == [{"n": 1}]


def test_a_body_that_is_too_large_is_refused_and_batches_stay_within_the_limit(slow):
    settings = QueueSettings.of(max_message_size=40)
    queue = Queue(store=MemoryStore(clock=slow), name="orders", settings=settings, clock=slow)
    with queue.buffer(linger=LINGER) as buffer:
        with pytest.raises(MessageTooLarge, match="max_message_size is 40"):
            buffer.enqueue("x" * 40)
        for _ in range(5):
            buffer.enqueue("x" * 15)
    sizes = [entry.size for entry in queue.store.list("orders/messages/").objects]
    assert sorted(sizes) == [16, 32, 32]


def test_the_error_of_a_batch_is_in_its_futures_and_close_raises_it(slow):
    def refuse(operation, key, perform):
        if operation == "put":
            raise QueueFull("no more")
        return perform()

    queue = Queue(store=MemoryStore(clock=slow, around=refuse), name="orders", clock=slow)
    buffer = queue.buffer(linger=LINGER)
    futures = [buffer.enqueue("1"), buffer.enqueue("2")]

    with pytest.raises(QueueFull, match="no more"):
        buffer.close()

    for future in futures:
        with pytest.raises(QueueFull, match="no more"):
            future.result(0)
    buffer.close()


def test_a_lost_answer_is_looked_up_and_stores_one_batch():
    clock = ManualClock()
    lost: list[str] = []

    def lose(operation, key, perform):
        answer = perform()
        if operation == "put" and not lost:
            lost.append(key)
            raise Unavailable("time-out")
        return answer

    queue = Queue(store=MemoryStore(clock=clock, around=lose), name="orders", clock=clock)
    with queue.buffer(per_object=2) as buffer:
        futures = [buffer.enqueue("1"), buffer.enqueue("2")]

    assert {future.result(0).path for future in futures} == set(paths(queue))


def test_nothing_can_be_added_once_it_is_closed(queue):
    buffer = queue.buffer()
    buffer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        buffer.enqueue("1")


class Gate:
    """Holds PUTs up until it is opened."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.waiting = threading.Semaphore(0)

    def __call__(self, operation, key, perform):
        if operation == "put":
            self.waiting.release()
            assert self.is_open.wait(30)
        return perform()


def test_a_full_buffer_pushes_back_and_says_so_when_its_patience_is_over():
    """By the queue's clock, which passes while the call waits."""
    clock, gate = ManualClock(), Gate()
    queue = Queue(store=MemoryStore(clock=clock, around=gate), name="orders", clock=clock)
    buffer = queue.buffer(per_object=2, max_pending=4, concurrency=1, room_within=1.0)
    futures = [buffer.enqueue(str(number)) for number in range(4)]

    with pytest.raises(QueueFull, match="max_pending"):
        buffer.enqueue("one more")

    gate.is_open.set()
    buffer.close()
    assert all(future.done() for future in futures)
    assert sum(len(lines(queue, path)) for path in paths(queue)) == 4


def test_a_complete_batch_waits_for_one_put_at_most_before_its_own():
    """Callers that are faster than S3 wait themselves: what they have handed over is durable soon."""
    clock, gate = ManualClock(), Gate()
    queue = Queue(store=MemoryStore(clock=clock, around=gate), name="orders", clock=clock)
    buffer = queue.buffer(per_object=2, concurrency=3, room_within=1.0)
    futures = [buffer.enqueue(str(number)) for number in range(2 * (3 + 1))]

    with pytest.raises(QueueFull):
        buffer.enqueue("one more")

    gate.is_open.set()
    buffer.close()
    assert all(future.done() for future in futures)
    assert sorted(len(lines(queue, path)) for path in paths(queue)) == [2] * 4


def test_its_futures_are_those_of_the_standard_library():
    clock, gate = ManualClock(), Gate()
    queue = Queue(store=MemoryStore(clock=clock, around=gate), name="orders", clock=clock)
    called: list[int] = []

    async def awaited(future):
        return await asyncio.wrap_future(future)

    with queue.buffer(linger=LINGER, per_object=3) as buffer:
        futures = [buffer.enqueue(str(number)) for number in range(3)]
        futures[0].add_done_callback(lambda future: called.append(future.result().line))
        assert not futures[0].cancel()
        assert futures[0].running()
        assert wait(futures, timeout=0.01).not_done == set(futures)
        with pytest.raises(TimeoutError):
            futures[1].result(0.01)
        gate.is_open.set()
        assert wait(futures, timeout=30).not_done == set()
        assert [future.result(30).line for future in as_completed(futures, timeout=30)] != []
        assert asyncio.run(awaited(futures[2])).line == 3
        assert futures[1].exception() is None
    assert called == [1]


def test_whoever_waits_for_one_future_is_not_woken_by_another_of_its_batch():
    """A future that is woken before its end takes that for the end of its patience."""
    clock, gate = ManualClock(), Gate()
    queue = Queue(store=MemoryStore(clock=clock, around=gate), name="orders", clock=clock)
    answered: list[object] = []

    def ask(future):
        try:
            answered.append(future.result(30).line)
        except TimeoutError as error:
            answered.append(error)

    with queue.buffer(linger=LINGER, per_object=2) as buffer:
        first, second = buffer.enqueue("1"), buffer.enqueue("2")
        asking = threading.Thread(target=ask, args=(second,))
        # The first one has ended, the second one has not: time enough for a waiter to wake.
        first.add_done_callback(lambda future: asking.join(0.1))
        asking.start()
        gate.is_open.set()
        asking.join(30)
    assert answered == [2]


def test_a_call_that_waits_for_room_gets_it_when_a_batch_is_stored():
    clock, gate = StandingClock(), Gate()
    queue = Queue(store=MemoryStore(clock=clock, around=gate), name="orders", clock=clock)
    buffer = queue.buffer(linger=LINGER, per_object=100, max_pending=3, concurrency=1)
    for number in range(3):
        buffer.enqueue(str(number))
    with ThreadPoolExecutor(1) as caller:
        fourth = caller.submit(buffer.enqueue, "3")
        # The batch is not full, but it is all there is room for: it goes now.
        assert gate.waiting.acquire(timeout=30)
        assert not fourth.done()
        gate.is_open.set()
        fourth.result(30)
    buffer.close()
    assert sum(len(lines(queue, path)) for path in paths(queue)) == 4


def test_many_threads_lose_nothing_and_every_future_tells_the_truth():
    clock = StandingClock()
    queue = Queue(store=MemoryStore(clock=clock), name="orders", clock=clock)
    with queue.buffer(linger=LINGER, per_object=7, max_pending=50) as buffer, ThreadPoolExecutor(8) as callers:
        futures = list(callers.map(lambda number: (number, buffer.enqueue({"n": number})), range(500)))
    for number, future in futures:
        path, line = future.result(0)
        assert lines(queue, path)[line - 1] == {"n": number}
    assert sum(len(lines(queue, path)) for path in paths(queue)) == 500


def test_a_flush_waits_for_a_batch_that_another_thread_has_in_hand():
    clock, gate = StandingClock(), Gate()
    queue = Queue(store=MemoryStore(clock=clock, around=gate), name="orders", clock=clock)
    buffer = queue.buffer(linger=LINGER, per_object=2)
    futures = [buffer.enqueue("1"), buffer.enqueue("2")]
    with ThreadPoolExecutor(1) as caller:
        flushed = caller.submit(buffer.flush)
        assert gate.waiting.acquire(timeout=30)
        assert not flushed.done()
        gate.is_open.set()
        flushed.result(30)
    assert all(future.done() for future in futures)
    buffer.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"per_object": 0}, "per_object"),
        ({"concurrency": 0}, "concurrency"),
        ({"max_pending": 0}, "max_pending"),
        ({"linger": 0}, "linger"),
        ({"linger": float("nan")}, "linger"),
        ({"room_within": -1}, "room_within"),
        ({"priority": 256}, "priority"),
        ({"metadata": {"a": "x" * 3000}}, "metadata"),
    ],
)
def test_wrong_numbers_are_refused_at_once(queue, options, said):
    with pytest.raises(InvalidRequest, match=said):
        queue.buffer(**options)


def test_priority_and_metadata_are_every_batchs(queue):
    with queue.buffer(linger=LINGER, priority=200, metadata={"from": "shop"}) as buffer:
        buffer.enqueue("1")
    (path,) = paths(queue)
    assert path.startswith("messages/p200/")
    assert queue.store.head(queue.keys.message(path)).metadata == {"from": "shop"}


def test_what_is_buffered_when_the_interpreter_ends_is_stored():
    """In a process of its own: nobody closes the buffer, and its linger is an hour."""
    program = (
        "import atexit\n"
        "from s3queue import connect\n"
        "queue = connect('memory://x/orders')\n"
        "atexit.register(lambda: print(queue.stats().pending))\n"
        "buffer = queue.buffer(linger=3600)\n"
        "buffer.enqueue({'n': 1})\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(s3queue.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_what_it_costs(bench):
    queue = bench.queue()
    with queue.buffer(linger=LINGER, per_object=100) as buffer:
        for number in range(100):
            buffer.enqueue({"n": number})
    assert bench.store.take() == {"put": 1}


def test_a_body_that_the_handler_cannot_take_is_refused_as_enqueue_refuses_it():
    from s3queue import define

    definition = define("orders")

    @definition.handler
    def handle(order: dict) -> None: ...

    queue = definition.connect("memory://buffered")
    with queue.buffer(linger=LINGER) as buffer, pytest.raises(InvalidRequest, match="cannot take this payload"):
        buffer.enqueue("[1, 2]")


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_batch_for_which_no_thread_can_be_started_is_stored_once(monkeypatch):
    """A pool queues its work before it starts a thread for it: a thread that it had stored the batch once more."""
    clock, storing, go_on = StandingClock(), threading.Event(), threading.Event()
    queue = Queue(store=MemoryStore(clock=clock), name="orders", clock=clock)
    real_put = queue.store.put

    def slow_put(key, body, **options):
        if b"first" in body:
            storing.set()
            assert go_on.wait(30)
        return real_put(key, body, **options)

    queue.store.put = slow_put
    with queue.buffer(per_object=1, linger=LINGER, concurrency=2) as buffer:
        first = buffer.enqueue("first")
        assert storing.wait(30)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            second = buffer.enqueue("second")
        go_on.set()

    assert {first.result().path, second.result().path} == set(paths(queue))
    assert buffer._pending == buffer._bytes == 0


def test_a_buffer_that_could_not_start_its_thread_does_so_with_the_next_body(queue, slow, monkeypatch):
    """Else nobody would store what is not complete, and its future would wait for ever."""
    with queue.buffer(linger=LINGER) as buffer:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(RuntimeError):
                buffer.enqueue(1)
        future = buffer.enqueue(2)
        assert buffer._lingering.is_alive()
        slow.pass_(LINGER)

        assert lines(queue, future.result(30).path) == [2]


class Impatient(threading.Condition):
    """Fails where another one would wait for ever."""

    def wait(self, timeout: float | None = None) -> bool:
        assert super().wait(threads.PATIENCE), "nobody will end this"
        return True


def test_the_callback_of_a_future_may_flush_and_close():
    """It runs in the thread that stores its batch, and waited for that batch: for itself."""
    clock, gate, closed = StandingClock(), Gate(), threading.Event()
    queue = Queue(store=MemoryStore(clock=clock, around=gate), name="orders", clock=clock)
    buffer = queue.buffer(linger=LINGER, per_object=1, concurrency=1)

    def go_on(future):
        buffer.enqueue(2)
        buffer.flush()
        buffer.close()
        closed.set()

    buffer._changed = Impatient(buffer._mutex)
    buffer.enqueue(1).add_done_callback(go_on)
    gate.is_open.set()

    assert closed.wait(threads.PATIENCE)
    assert sorted(lines(queue, path) for path in paths(queue)) == [[1], [2]]


def test_a_callback_that_waits_for_room_makes_it():
    """The buffer's only thread ran that callback, and what would have made room was queued behind it."""
    clock, gate, done = ManualClock(), Gate(), threading.Event()
    queue = Queue(store=MemoryStore(clock=clock, around=gate), name="orders", clock=clock)
    buffer = queue.buffer(per_object=1, concurrency=1, room_within=1.0)
    refused: list[QueueFull] = []

    def go_on(future):
        try:
            for number in range(2, 6):
                buffer.enqueue(number)
        except QueueFull as error:
            refused.append(error)
        done.set()

    buffer.enqueue(0).add_done_callback(go_on)
    buffer.enqueue(1)
    gate.is_open.set()

    assert done.wait(threads.PATIENCE)
    assert refused == []
    buffer.close()
    assert sorted(lines(queue, path) for path in paths(queue)) == [[number] for number in range(6)]


def test_a_callback_that_waits_for_room_runs_no_other_callbacks_meanwhile():
    """They could wait for room as well: a chain of them would be as deep as it is long."""
    clock, gate = StandingClock(), Gate()
    queue = Queue(store=MemoryStore(clock=clock, around=gate), name="orders", clock=clock)
    buffer = queue.buffer(linger=LINGER, per_object=1, concurrency=1)
    running: list[int] = []
    depths: list[int] = []

    def go_on(future):
        running.append(threading.get_ident())
        depths.append(running.count(threading.get_ident()))
        for _ in range(2):
            if len(depths) < 20:
                buffer.enqueue(1).add_done_callback(go_on)
        running.remove(threading.get_ident())

    buffer.enqueue(0).add_done_callback(go_on)
    gate.is_open.set()
    threads.eventually(lambda: len(depths) >= 20)
    buffer.close()

    assert set(depths) == {1}
    assert buffer._pending == buffer._bytes == 0


def test_a_batch_whose_call_was_interrupted_is_stored_by_the_next_flush(queue, monkeypatch):
    """Ctrl-C between taking a batch and storing it: nobody had it, and closing the buffer waited for it for ever."""

    def interrupted(batch):
        raise KeyboardInterrupt

    buffer = queue.buffer(linger=LINGER, per_object=2)
    first = buffer.enqueue(1)
    with monkeypatch.context() as patch:
        patch.setattr(buffer, "_send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            buffer.enqueue(2)
    buffer._changed = Impatient(buffer._mutex)
    buffer.close()

    assert lines(queue, first.result(0).path) == [1, 2]
