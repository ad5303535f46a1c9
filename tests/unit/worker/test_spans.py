"""With OpenTelemetry's SDK: a producer's span, the handler's, and what the handler sends are one trace."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from s3queue import Context, Postpone, Retry
from support.real_tracing import real_tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    with real_tracing() as exporter:
        yield exporter


def traceparents(bench, queue: str) -> list[str]:
    return [bench.memory.head(key).metadata.get("traceparent", "") for key in bench.keys(f"{queue}/messages/")]


def named(span) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def test_a_producers_span_is_the_parent_of_the_handlers_and_that_of_what_it_sends(bench, queue, spans):
    def handler(body: dict, context: Context) -> None:
        context.send("emails", {})

    with trace.get_tracer("shop").start_as_current_span("checkout") as checkout:
        path = queue.enqueue({})
    assert traceparents(bench, "orders") == [named(checkout)]

    assert bench.processor(queue, handler, sends_to=["emails"]).run(path) == "completed"

    produced, handled = spans.get_finished_spans()
    assert (produced.name, handled.name) == ("checkout", "process orders")
    assert handled.kind == trace.SpanKind.CONSUMER
    assert handled.context.trace_id == produced.context.trace_id
    assert handled.parent.span_id == produced.context.span_id
    assert handled.parent.is_remote
    assert handled.attributes["messaging.system"] == "s3queue"
    assert handled.attributes["messaging.destination.name"] == "orders"
    assert handled.attributes["messaging.message.id"] == path
    assert handled.attributes["s3queue.attempt"] == 1
    assert handled.status.is_unset
    assert traceparents(bench, "emails") == [named(handled)]


def test_a_producer_outside_of_spans_adds_nothing(bench, queue, spans):
    queue.enqueue({})

    assert traceparents(bench, "orders") == [""]


def test_every_way_to_enqueue_adds_the_trace(bench, queue, spans):
    with trace.get_tracer("shop").start_as_current_span("checkout") as checkout:
        queue.enqueue({}, name="named")
        queue.enqueue({}, dedup_id="a")
        queue.enqueue({}, dedup_id="b", dedup_for=60)
        queue.enqueue({}, group="customer-42")
        queue.enqueue_many([{}, {}])
        queue.enqueue({}, metadata={"traceparent": PARENT})

    assert sorted(traceparents(bench, "orders")) == sorted([named(checkout)] * 5 + [PARENT])


def test_a_handler_without_a_parent_begins_a_trace(bench, queue, spans):
    path = queue.enqueue({})
    bench.processor(queue, lambda body, context: context.send("emails", {}), sends_to=["emails"]).run(path)

    (handled,) = spans.get_finished_spans()
    assert handled.parent is None
    assert traceparents(bench, "emails") == [named(handled)]


def test_spans_of_the_handlers_own_are_within_its_span(bench, queue, spans):
    async def handler(body: dict, context: Context) -> None:
        with trace.get_tracer("shop").start_as_current_span("query"):
            bench.queue("audit").enqueue({})

    path = queue.enqueue({}, metadata={"traceparent": PARENT})
    bench.processor(queue, handler).run(path)

    query, handled = spans.get_finished_spans()
    assert query.parent.span_id == handled.context.span_id
    assert f"{handled.context.trace_id:032x}" in PARENT
    assert traceparents(bench, "audit") == [named(query)]


@pytest.mark.parametrize(("error", "is_error"), [(ConnectionError("no route"), True), (Postpone(after=5), False)])
def test_an_attempt_that_fails_is_an_error_and_one_that_is_postponed_is_not(bench, queue, spans, error, is_error):
    def handler(body: dict) -> None:
        raise error

    bench.processor(queue, handler).run(queue.enqueue({}))

    (handled,) = spans.get_finished_spans()
    assert (handled.status.status_code is trace.StatusCode.ERROR) == is_error
    assert [event.attributes["exception.type"] for event in handled.events] == (["ConnectionError"] if is_error else [])
    assert handled.attributes.get("error.type") == ("ConnectionError" if is_error else None)


def test_each_attempt_has_a_span(bench, queue, spans):
    def handler(body: dict, context: Context) -> None:
        if context.attempt == 1:
            raise Retry("later", after=0)

    path = queue.enqueue({}, metadata={"traceparent": PARENT})
    processor = bench.processor(queue, handler)
    processor.run(path)
    bench.clock.advance(60)
    assert processor.run(path, read_first=True) == "completed"

    assert [span.attributes["s3queue.attempt"] for span in spans.get_finished_spans()] == [1, 2]
    assert {f"{span.parent.span_id:016x}" for span in spans.get_finished_spans()} == {"b7ad6b7169203331"}


def test_each_line_of_a_batch_has_a_span_and_what_they_send_is_still_one_batch(bench, queue, spans):
    def handler(body: dict, context: Context) -> None:
        context.send("emails", body)

    (path,) = queue.enqueue_many([{"n": 1}, {"n": 2}, {"n": 3}], metadata={"traceparent": PARENT})
    assert bench.processor(queue, handler, sends_to=["emails"]).run(path) == "completed"

    assert [span.attributes["s3queue.line"] for span in spans.get_finished_spans()] == [1, 2, 3]
    assert traceparents(bench, "emails") == [PARENT]


def test_many_sends_of_one_message_are_still_few_objects(bench, queue, spans):
    """Whatever spans the handler opens: a traceparent of its own for each would make 150 objects of them."""

    def handler(body: dict, context: Context) -> None:
        for number in range(150):
            with trace.get_tracer("shop").start_as_current_span("one"):
                context.send("emails", {"n": number})

    bench.processor(queue, handler, sends_to=["emails"]).run(queue.enqueue({}))

    handled = spans.get_finished_spans()[-1]
    assert traceparents(bench, "emails") == [named(handled)] * 2


def test_one_call_for_messages_of_several_traces_is_linked_to_each(bench, spans):
    queue = bench.queue(partitions=1, collect=10, within=0)
    other = PARENT.replace("0af7", "1af7")
    paths = [queue.enqueue({}, metadata={"traceparent": parent}) for parent in (PARENT, other)]
    paths.append(queue.enqueue({}))

    def handler(bodies: list[dict]) -> None:
        assert len(bodies) == 3

    bench.processor(queue, handler).run(paths[0])

    (handled,) = spans.get_finished_spans()
    assert handled.parent is None
    assert {f"{link.context.trace_id:032x}" for link in handled.links} == {PARENT[3:35], other[3:35]}
    assert handled.attributes["messaging.batch.message_count"] == 3


def test_a_trace_that_is_not_sampled_stays_so(bench, queue, spans):
    path = queue.enqueue({}, metadata={"traceparent": PARENT[:-2] + "00"})
    bench.processor(queue, lambda body, context: context.send("emails", {}), sends_to=["emails"]).run(path)

    assert spans.get_finished_spans() == ()
    (sent,) = traceparents(bench, "emails")
    assert (sent[:35], sent[-2:]) == (PARENT[:35], "00")


def test_without_a_tracer_provider_the_trace_is_passed_on_as_it_is(bench, queue):
    """The API is imported here, as in any process with FastAPI; nobody has set a provider."""
    path = queue.enqueue({}, metadata={"traceparent": PARENT})
    bench.processor(queue, lambda body, context: context.send("emails", {}), sends_to=["emails"]).run(path)

    assert traceparents(bench, "emails") == [PARENT]


def test_a_tracer_that_fails_keeps_no_message_from_its_handler(bench, queue, spans, caplog):
    class Broken(SpanProcessor):
        def on_start(self, span, parent_context=None) -> None:
            raise RuntimeError("the collector is gone")

    trace.get_tracer_provider().real.add_span_processor(Broken())
    path = queue.enqueue({}, metadata={"traceparent": PARENT})
    with caplog.at_level(logging.WARNING, "s3queue"):
        ending = bench.processor(queue, lambda body, context: context.send("emails", {}), sends_to=["emails"]).run(path)

    assert ending == "completed"
    assert "handler runs without a span" in caplog.text
    assert traceparents(bench, "emails") == [PARENT]
