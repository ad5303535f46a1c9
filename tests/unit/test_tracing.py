"""A trace travels in the metadata of messages, with OpenTelemetry and without, and takes no room from anything else."""

from __future__ import annotations

import contextvars
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from s3queue import Context, Flow, Reject, define
from s3queue.encoding import METADATA_BYTES, PUT_ID, metadata_size
from s3queue.tracing import ROOM_BYTES, carrying, current, forwarded, traced
from s3queue.worker.processor import Processor

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
TRACE = {"traceparent": PARENT, "tracestate": STATE}


def metadata_of(bench, queue: str) -> list[dict[str, str]]:
    """The trace of every message of a queue."""
    found = (bench.memory.open(key) for key in bench.keys(f"{queue}/messages/"))
    return [{name: text for name, text in one.metadata.items() if name.startswith("trace")} for one in found]


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "nonsense",
        PARENT.upper(),
        PARENT + "-more",
        "ff" + PARENT[2:],
        PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        PARENT.replace("b7ad6b7169203331", "0" * 16),
        PARENT + "\n",
        "01" + PARENT[2:] + "-" + "x" * 65,
    ],
)
def test_what_is_not_a_traceparent_is_not_passed_on(parent):
    assert forwarded({"traceparent": parent, "tracestate": STATE}) == {}


@pytest.mark.parametrize("parent", [PARENT, "01" + PARENT[2:], "cc" + PARENT[2:] + "-what.the.future.holds"])
def test_a_traceparent_is_passed_on_as_it_is(parent):
    assert forwarded({"traceparent": parent}) == {"traceparent": parent}


@pytest.mark.parametrize("state", ["", " ", "x" * 513, "a=ä", "a=1\r\nx-amz-acl: public-read"])
def test_a_tracestate_that_no_header_can_carry_is_left_out(state):
    assert forwarded({"traceparent": PARENT, "tracestate": state}) == {"traceparent": PARENT}


def test_the_callers_own_trace_wins():
    own = {"traceparent": "theirs"}

    assert traced(own, TRACE) == own


def test_a_trace_is_left_out_where_there_is_no_room():
    full, nearly = {"a": "x" * ROOM_BYTES}, {"a": "x" * (ROOM_BYTES - 90)}

    assert traced(full, TRACE) == full
    assert traced(nearly, TRACE) == nearly | {"traceparent": PARENT}
    assert traced({}, TRACE) == TRACE


def test_what_a_handler_sends_carries_the_trace_of_its_message(bench, queue):
    def handler(body: dict, context: Context) -> None:
        context.send("emails", {"n": 1})
        context.send("emails", {"n": 2}, metadata={"traceparent": "mine"})
        bench.queue("audit").enqueue({"n": 3})
        bench.queue("audit").enqueue_many([{"n": 4}, {"n": 5}])
        assert dict(context.metadata) == TRACE | {"customer": "42"}

    path = queue.enqueue({}, metadata=TRACE | {"customer": "42"})
    assert bench.processor(queue, handler, sends_to=["emails"]).run(path) == "completed"

    assert metadata_of(bench, "emails") == [TRACE, {"traceparent": "mine"}]
    assert metadata_of(bench, "audit") == [TRACE, TRACE]


def test_what_is_enqueued_after_the_handler_carries_nothing(bench, queue):
    path = queue.enqueue({}, metadata=TRACE)
    bench.processor(queue, lambda body: None).run(path)

    assert current() == {}
    bench.queue("audit").enqueue({})
    assert metadata_of(bench, "audit") == [{}]


def test_a_message_without_a_trace_sends_none(bench, queue):
    path = queue.enqueue({}, metadata={"traceparent": "nonsense", "tracestate": STATE})
    bench.processor(queue, lambda body, context: context.send("emails", {}), sends_to=["emails"]).run(path)

    assert metadata_of(bench, "emails") == [{}]


def test_a_coroutine_passes_on_the_trace_of_its_own_message(bench, queue):
    """The event loop of a thread outlives the first message, whose trace is not the second one's."""

    async def handler(body: dict, context: Context) -> None:
        bench.queue("audit").enqueue(body)

    other = PARENT.replace("0af7", "1af7")
    paths = [queue.enqueue({}, metadata={"traceparent": parent} if parent else {}) for parent in (PARENT, other, "")]
    processor = bench.processor(queue, handler)
    for path in paths:
        assert processor.run(path) == "completed"

    assert metadata_of(bench, "audit") == [{"traceparent": PARENT}, {"traceparent": other}, {}]


def test_what_the_lines_of_a_batch_send_is_one_batch_with_the_trace(bench, queue):
    def handler(body: dict, context: Context) -> None:
        context.send("emails", body)

    (path,) = queue.enqueue_many([{"n": number} for number in range(20)], metadata=TRACE)
    assert bench.processor(queue, handler, sends_to=["emails"]).run(path) == "completed"

    assert metadata_of(bench, "emails") == [TRACE]


def test_the_members_and_steps_of_a_flow_carry_the_trace_of_who_started_it(bench, queue):
    definition = define("orders", sends_to=["thumbnails", "emails"], flows=True)

    @definition.handler
    def handler(body: dict, context: Context) -> str:
        flow, within = Flow(context.store), Flow(context.store)
        flow.add("thumbnails", {"n": 1})
        flow.add("thumbnails", {"n": 2}, metadata={"traceparent": "mine"})
        within.add("thumbnails", {"n": 3})
        within.then("emails", {"n": 4})
        flow.add(within)
        flow.then("emails", {"n": 5})
        return context.start(flow)

    queue.sends_to, queue.flows = definition.sends_to, definition.flows
    path = queue.enqueue({}, metadata=TRACE)
    assert Processor(queue=queue, definition=definition).run(path) == "completed"

    assert sorted(map(json.dumps, metadata_of(bench, "thumbnails"))) == sorted(
        map(json.dumps, [TRACE, {"traceparent": "mine"}, TRACE])
    )
    thumbnails = bench.queue("thumbnails")
    for key in bench.keys("thumbnails/messages/"):
        bench.processor(thumbnails, lambda body: None).run(key.removeprefix("thumbnails/"), read_first=True)
    emails = bench.queue("emails")
    (inner,) = bench.keys("emails/messages/")
    assert metadata_of(bench, "emails") == [TRACE]
    bench.processor(emails, lambda body: None).run(inner.removeprefix("emails/"), read_first=True)
    assert metadata_of(bench, "emails") == [TRACE], "the step behind all members"


def test_a_flow_that_is_as_large_as_can_be_starts_without_the_trace(bench, queue, monkeypatch):
    def handler(body: dict) -> None:
        flow = Flow(queue, id="full")
        flow.add("thumbnails", {"n": 1})
        size = len(flow.document().to_bytes())
        monkeypatch.setattr("s3queue.flow.flows.FLOW_BYTES", size)
        flow.start()

    assert bench.processor(queue, handler).run(queue.enqueue({}, metadata=TRACE)) == "completed"

    assert metadata_of(bench, "thumbnails") == [{}]


def test_a_flow_with_an_id_of_its_own_is_the_same_flow_in_another_trace(bench, queue):
    def handler(body: dict) -> None:
        flow = Flow(queue, id="order-17")
        flow.add("thumbnails", {"n": 1})
        flow.start()

    for parent in (PARENT, PARENT.replace("0af7", "1af7")):
        path = queue.enqueue({}, metadata={"traceparent": parent})
        assert bench.processor(queue, handler).run(path) == "completed"

    assert metadata_of(bench, "thumbnails") == [{"traceparent": PARENT}]


@pytest.mark.parametrize("own", [0, 200, 831])
def test_a_dead_letter_keeps_all_metadata_beside_the_longest_trace_and_id(bench, own):
    """Else a trace would push what the producer gave out of the letter."""
    state = "v=" + "s" * 510
    home, dying = bench.queue("home"), bench.queue("w" * 63, worker_id="x" * 200)

    def start(body: dict) -> None:
        flow = Flow(home, id="f" * 63)
        for _ in range(10):
            flow.add(dying.name, {}, metadata={"own": "x" * own} if own else {})
        flow.start()

    def die(body: dict) -> None:
        raise type("E" * 100, (Reject,), {})("no" * 400)

    path = home.enqueue({}, metadata={"traceparent": PARENT, "tracestate": state})
    assert bench.processor(home, start).run(path) == "completed"
    found = bench.keys(f"{dying.name}/messages/")[0].removeprefix(f"{dying.name}/")
    stored = bench.memory.head(f"{dying.name}/{found}").metadata
    assert "traceparent" in stored
    assert bench.processor(dying, die).run(found, read_first=True) == "dead"

    letter = bench.memory.head(bench.keys(f"{dying.name}/dead/")[0]).metadata
    assert letter.items() >= {name: text for name, text in stored.items() if name != PUT_ID}.items()
    assert "s3queue-dropped" not in letter
    assert len(letter["s3queue-error"]) > 50
    assert sum(len(name) + len(text) for name, text in letter.items()) <= METADATA_BYTES


def test_the_letter_of_a_batch_keeps_all_metadata_beside_the_trace_and_the_types_of_its_errors(bench):
    queue = bench.queue("w" * 63, worker_id="x" * 200)
    trace = traced({"own": "x" * 400}, {"traceparent": PARENT, "tracestate": "v=" + "s" * 415})
    assert metadata_size(trace) > ROOM_BYTES - 10

    def die(body: dict) -> None:
        raise type(f"E{body['n']:019d}", (Reject,), {})("no" * 400)

    (path,) = queue.enqueue_many([{"n": number} for number in range(12)], metadata=trace)
    assert bench.processor(queue, die).run(path) == "dead"

    letter = bench.memory.head(bench.keys(f"{queue.name}/dead/")[0]).metadata
    assert len(letter["s3queue-error-types"]) > 300
    assert letter.items() >= trace.items()
    assert "s3queue-dropped" not in letter


def test_a_call_that_is_collected_in_another_context_does_no_harm():
    call = carrying(TRACE)
    contextvars.copy_context().run(call.__enter__)

    call.__exit__(None, None, None)

    assert current() == {}


def test_whoever_does_not_use_opentelemetry_does_not_import_it():
    script = """
import sys
from s3queue import Queue, Worker
from s3queue.stores.memory import MemoryStore

queue = Queue(store=MemoryStore(), name="orders")
queue.enqueue({}, metadata={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
worker = Worker(queue, lambda body: None, sweep=False)
worker.run_until_empty()
assert worker.stats()["succeeded"] == 1
print([name for name in sys.modules if name.startswith(("opentelemetry", "prometheus", "http.server"))])
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "functions")}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert (ran.stdout.strip(), ran.stderr) == ("[]", "")
