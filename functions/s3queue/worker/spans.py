"""Spans: a call of a handler continues its message's trace, in a span of OpenTelemetry if the process uses that."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from s3queue.errors import Postpone
from s3queue.tracing import carrying, forwarded, opentelemetry, trace_of

from .context import Context

_log = logging.getLogger(__name__)


@contextmanager
def handling(context: Context) -> Iterator[None]:
    """Around a call of the handler, in its thread: what it enqueues carries the trace, and so does `Context.send`.

    What the lines of a batch send carries the batch's own trace, not their spans': else it could not be one batch.
    An error of someone's tracing is logged, and the handler runs without a span.
    """
    context.trace = carried = forwarded(context.metadata)
    api = opentelemetry()
    span = _start(api, context, carried) if api else None
    if span is None:
        with carrying(carried):
            yield
        return
    if not context.claim.message.is_batch:
        context.trace = trace_of(span) or carried
    try:
        with carrying(carried), api.use_span(span, record_exception=False, set_status_on_exception=False):
            yield
    except BaseException as error:
        # A message that is put back has not failed.
        _end(api, span, None if isinstance(error, Postpone) else error)
        raise
    _end(api, span, None)


def _start(api: Any, context: Context, carried: Mapping[str, str]) -> Any:
    """A span; one that records nothing if no tracer provider is set; None if that failed."""
    claim = context.claim
    attributes: dict[str, str | int] = {
        "messaging.system": "s3queue",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": context.queue,
        "messaging.message.id": context.path,
        "s3queue.attempt": context.attempt,
    }
    if context.line:
        attributes["s3queue.line"] = context.line
    try:
        parent: Any = None
        links: list[Any] = []
        if claim.companions:
            # One call for messages of several traces: a span has one parent at most.
            attributes["messaging.batch.message_count"] = 1 + len(claim.companions)
            traces = (forwarded(one.message.metadata) for one in (claim, *claim.companions))
            spans = (api.get_current_span(_extracted(trace)) for trace in traces if trace)
            links = [api.Link(span.get_span_context()) for span in spans]
        elif carried:
            parent = _extracted(carried)
        return api.get_tracer("s3queue").start_span(
            f"process {context.queue}", parent, api.SpanKind.CONSUMER, attributes, links
        )
    except Exception:
        _log.warning("handler runs without a span: %s/%s", context.queue, context.path, exc_info=True)
        return None


def _extracted(trace: Mapping[str, str]) -> Any:
    # Not above: only for those who use it.
    from opentelemetry.context import get_current
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(trace, get_current())


def _end(api: Any, span: Any, error: BaseException | None) -> None:
    try:
        if error is not None:
            span.record_exception(error)
            span.set_status(api.Status(api.StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            span.set_attribute("error.type", type(error).__name__)
        span.end()
    except Exception:
        _log.warning("span not ended: OpenTelemetry failed", exc_info=True)
