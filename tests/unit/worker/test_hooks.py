"""Hooks: `on_error` and `on_complete` are told the error, the message, the result and the context, and do no harm."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest

from s3queue import AttemptFailed, Context, InvalidRequest, LeaseLost, Processor, Reject, Worker, define
from s3queue.clock import SystemClock
from s3queue.events import publish_to
from s3queue.worker.hook_calls import MOST_HUNG, HookCalls
from support.threads import PATIENCE, eventually, hurry


@pytest.fixture
def queue(bench):
    return bench.queue(max_attempts=2, visibility_timeout=10)


@pytest.fixture
def definition(queue):
    defined = define("orders")
    defined.events.pass_on(queue.events)
    return defined


def run(queue, definition, path, **options) -> Any:
    return Processor(queue=queue, definition=definition).run(path, **options)


class NoLuck(Exception):
    pass


def test_an_error_hook_gets_the_exception_the_message_and_the_context(bench, queue, definition):
    seen: list[tuple[Any, ...]] = []
    raised = NoLuck("no luck")

    @definition.handler
    def handle(body: dict) -> None:
        raise raised

    @definition.on_error
    def tell(error, message, context) -> None:
        seen.append((error, message.json(), context.attempt, context.max_attempts, context.path))

    path = queue.enqueue({"id": 1})
    assert run(queue, definition, path) == "retried"
    bench.clock.advance(5)
    assert run(queue, definition, path, read_first=True) == "dead"

    assert [error for error, *_ in seen] == [raised, raised]
    assert [rest for _, *rest in seen] == [[{"id": 1}, 1, 2, path], [{"id": 1}, 2, 2, path]]


def test_a_completion_hook_gets_what_the_handler_returned_itself(queue, definition):
    seen: list[tuple[Any, ...]] = []
    returned = {"made": object()}

    @definition.handler
    def handle(body: bytes) -> Any:
        return returned

    @definition.on_complete
    def tell(message, result, context) -> None:
        seen.append((message.body, result, context.queue))

    assert run(queue, definition, queue.enqueue(b"x")) == "completed"
    assert seen == [(b"x", returned, "orders")]
    assert seen[0][1] is returned


def test_a_hook_cannot_extend_what_is_over(queue, definition):
    problems: list[Exception] = []

    @definition.handler
    def handle(body: bytes) -> None: ...

    @definition.on_complete
    def tell(message, result, context: Context) -> None:
        try:
            context.extend(60)
        except LeaseLost as error:
            problems.append(error)

    run(queue, definition, queue.enqueue(b"x"))
    assert "the attempt is over" in str(problems[0])


def test_a_payload_that_does_not_parse_is_an_error_too(queue, definition):
    seen: list[Any] = []

    @definition.handler
    def handle(body: dict) -> None: ...

    @definition.on_error
    def tell(error, message, context) -> None:
        seen.append(error)

    assert run(queue, definition, queue.enqueue(b"{")) == "dead"
    assert isinstance(seen[0], Reject)


def test_an_attempt_that_nobody_ended_is_told_by_who_finds_it(bench, queue, definition):
    seen: list[tuple[Any, ...]] = []

    @definition.on_error
    def tell(error, message, context) -> None:
        seen.append((type(error), error.type, message.path, context.worker_id))

    path = queue.enqueue(b"x")
    crashed = bench.queue(visibility_timeout=10, worker_id="crashed")
    assert crashed.claim(path)
    bench.clock.advance(60)
    bench.sweeper(queue).sweep()

    assert seen == [(AttemptFailed, "LeaseExpired", path, "crashed")]


def test_a_message_with_an_impossible_name_is_told_without_an_attempt(bench, queue, definition):
    seen: list[tuple[Any, ...]] = []

    @definition.on_error
    def tell(error, message, context) -> None:
        seen.append((error.type, message.size, context.attempt))

    path = "messages/" + "n" * 1000
    bench.put(f"orders/{path}", b"xyz")
    assert queue.claim(path) is None

    assert seen == [("InvalidName", 3, 0)]


def test_a_batch_tells_the_results_of_its_lines_and_its_first_error(bench, queue, definition):
    completed: list[Any] = []
    failed: list[Any] = []

    @definition.handler
    def handle(body: int) -> int:
        if body == 2:
            raise NoLuck("two")
        return body * 10

    @definition.on_complete
    def done(message, result, context) -> None:
        completed.append(result)

    @definition.on_error
    def tell(error, message, context) -> None:
        failed.append((error.type, str(error)))

    good, bad = queue.enqueue_many([1, 3])[0], queue.enqueue_many([1, 2])[0]
    assert run(queue, definition, good) == "completed"
    assert run(queue, definition, bad) == "retried"

    assert completed == [{1: 10, 2: 30}]
    assert failed == [("NoLuck", "1 of 2 lines failed, the first: two")]


def test_hooks_may_be_async_and_share_the_handlers_loop(queue, definition):
    loops: list[Any] = []

    @definition.handler
    async def handle(body: int) -> int:
        loops.append(asyncio.get_running_loop())
        return body

    @definition.on_complete
    async def tell(message, result, context) -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())

    assert run(queue, definition, queue.enqueue(b"1")) == "completed"
    assert len(loops) == 2
    assert loops[0] is loops[1]


def test_an_async_hook_of_the_events_is_refused(queue):
    async def hook(fields: Any) -> None: ...

    with pytest.raises(InvalidRequest, match="on_error and on_complete can be"):
        queue.events.on("message.dead", hook)


async def cancelled(message, result, context) -> None:
    raise asyncio.CancelledError


def exits(message, result, context) -> None:
    raise SystemExit(3)


def raises(message, result, context) -> None:
    raise NoLuck("pager is down")


@pytest.mark.parametrize("hook", [cancelled, exits, raises])
def test_a_hook_that_raises_harms_no_message(queue, definition, caplog, hook):
    definition.handler(lambda body: 7)
    definition.on_complete(hook)
    after: list[Any] = []
    definition.on_complete(lambda message, result, context: after.append(result))
    path = queue.enqueue(b"1")

    assert run(queue, definition, path) == "completed"
    assert queue.status(path).state == "completed"
    assert after == [7]
    assert "event hook failed, continuing: message.completed" in caplog.text


def test_a_hook_with_one_parameter_gets_the_fields_of_the_event(queue, definition):
    seen: list[Any] = []
    definition.handler(lambda body: None)
    definition.on_complete(seen.append)
    definition.on_complete(lambda fields, log=None: seen.append(fields["path"]))

    path = queue.enqueue(b"1")
    run(queue, definition, path)

    assert seen[0]["path"] == seen[1] == path


@pytest.mark.parametrize("hook", [lambda: None, lambda error, message: None, lambda a, b, c, d: None])
def test_a_hook_that_cannot_be_called_is_refused_where_it_is_written(definition, hook):
    with pytest.raises(InvalidRequest, match=r"\(error, message, context\)"):
        definition.on_error(hook)
    with pytest.raises(InvalidRequest, match=r"\(message, result, context\)"):
        definition.on_complete(hook)


def test_hooks_hear_a_pull_worker(queue, definition):
    seen: list[Any] = []
    definition.handler(lambda body: body)

    @definition.on_complete
    def tell(message, result, context) -> None:
        seen.append(result)

    queue.enqueue(b"1")
    Worker(queue, definition, concurrency=1, sweep=False).run_until_empty()

    assert seen == [1]


def test_a_hook_that_hangs_stops_no_worker_and_no_outcome(bench, caplog):
    # Whether the heartbeat's thread gets its turn is not the question here.
    queue = bench.queue(handler_timeout=25, visibility_timeout=86400)
    definition = define("orders")
    definition.handler(lambda body: body)
    let_go = threading.Event()
    called: list[int] = []

    @definition.on_complete
    def hangs(message, result, context) -> None:
        called.append(result)
        let_go.wait(PATIENCE)

    worker = Worker(queue, definition, concurrency=1, sweep=False)
    hurry(worker)
    paths = [queue.enqueue(str(number)) for number in range(10)]
    worker.start()
    try:

        def are_completed() -> bool:
            bench.clock.advance(5)
            return worker.stats()["succeeded"] == len(paths)

        eventually(are_completed)
        assert len(called) < len(paths)
        assert "hook given up after 25 s, the outcome stands: test_a_hook_that_hangs" in caplog.text
        assert f"hangs: message.completed: orders/{paths[0]}" in caplog.text
        assert "let_go.wait" in caplog.text  # where it hangs
        assert "hook not called, 3 calls of it hang" in caplog.text
        assert worker.stop(PATIENCE)
    finally:
        let_go.set()
        worker.stop(PATIENCE)
    assert all(queue.status(path).state == "completed" for path in paths)


def test_a_hook_that_has_returned_at_last_is_called_again(queue):
    queue.settings = dataclasses.replace(queue.settings, handler_timeout=timedelta(seconds=0.01))
    queue.clock = SystemClock()
    calls = HookCalls(queue)
    queue.events.call_through(calls)
    let_go, told = threading.Event(), []

    def hook(fields: Any) -> None:
        told.append(fields["path"])
        let_go.wait(PATIENCE)

    queue.events.on("claim.lost", hook)
    for path in range(MOST_HUNG + 1):
        queue.events.emit("claim.lost", path=path)
    assert told == [*range(MOST_HUNG)]
    let_go.set()
    eventually(lambda: not calls._hung[id(hook)])
    queue.events.emit("claim.lost", path=7)
    assert told == [*range(MOST_HUNG), 7]


def test_hooks_of_a_worker_run_in_one_thread_that_knows_the_callers_context(queue):
    """What a hook keeps between messages, a connection or an event loop, stays usable."""
    queue.events.call_through(calls := HookCalls(queue))
    current: ContextVar[str] = ContextVar("current", default="nothing")
    told: list[tuple[int, str]] = []
    queue.events.on("claim.lost", lambda fields: told.append((threading.get_ident(), current.get())))

    current.set("a span")
    for _ in range(5):
        queue.events.emit("claim.lost")
    assert told == [(told[0][0], "a span")] * 5
    assert told[0][0] != threading.get_ident()
    thread = calls._idle[0]
    calls.end()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    queue.events.emit("claim.lost")  # a stopped worker's queue still has its hooks
    assert len(told) == 6
    calls.end()


def test_hooks_are_called_where_they_are_told_if_no_thread_can_be_started(queue, monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    queue.events.call_through(HookCalls(queue))
    told: list[int] = []
    queue.events.on("claim.lost", lambda fields: told.append(threading.get_ident()))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    queue.events.emit("claim.lost")
    assert told == [threading.get_ident()]


def test_events_carry_duration_attempts_and_sizes_but_no_result(bench, queue, definition):
    told: dict[str, dict[str, Any]] = {}
    queue.events.on("*", lambda fields: told.update({fields["event"]: dict(fields)}))

    entries: list[dict[str, Any]] = []

    class Bus:
        def put_events(self, *, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
            entries.extend(Entries)
            return {"FailedEntryCount": 0}

    queue.events.on("*", publish_to("bus", Bus(), "all"))

    @definition.handler
    def handle(body: dict) -> dict:
        bench.clock.advance(3)
        return {"secret": "of the result"}

    run(queue, definition, queue.enqueue({"a": 1}))

    completed = told["message.completed"]
    assert completed["duration_seconds"] == 3
    assert (completed["max_attempts"], completed["size"], completed["result_size"]) == (2, 7, 27)
    for name in ("message.claimed", "message.processing"):
        assert (told[name]["max_attempts"], told[name]["size"]) == (2, 7)
    published = [json.loads(entry["Detail"]) for entry in entries]
    assert published[-1]["duration_seconds"] == 3
    assert "of the result" not in json.dumps(published)


def test_a_hook_that_could_take_the_fields_alone_is_told_all(queue, definition):
    seen = []

    @definition.on_complete
    def told(message, result=None, context=None) -> None:
        seen.append((message.body, result))

    definition.handler(lambda body: "done")
    definition.events.pass_on(queue.events)
    Processor(queue=queue, definition=definition).run(queue.enqueue({"a": 1}))

    assert seen == [(b'{"a":1}', "done")]
