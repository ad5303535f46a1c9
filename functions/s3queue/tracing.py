"""Tracing: the W3C trace context that a message carries in its metadata, as `traceparent` and `tracestate`.

Nothing here imports OpenTelemetry: a process that uses it has imported it, and no other pays for it.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from s3queue.encoding import metadata_size

_log = logging.getLogger(__name__)
#: A trace is added to metadata that has at most so many bytes with it: so the longest id of a PUT fits beside them, and
#: a dead letter has room for all of it, beside the facts about the death.
ROOM_BYTES = 900
_PARENT, _STATE = "traceparent", "tracestate"
_IDS = r"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
#: Of version 00, which has no more than that, or of one to come.
_VALID_PARENT = re.compile(rf"00-{_IDS}|(?!00|ff)[0-9a-f]{{2}}-{_IDS}(-[!-~]{{1,64}})?")
_VALID_STATE = re.compile(r"[!-~]([ -~]{0,510}[!-~])?")
#: The trace of the message whose handler runs here.
_carried: ContextVar[Mapping[str, str] | None] = ContextVar("s3queue-trace", default=None)


def opentelemetry() -> Any:
    """The module `opentelemetry.trace`, if this process uses it; else None."""
    return sys.modules.get("opentelemetry.trace")


def forwarded(metadata: Mapping[str, str]) -> dict[str, str]:
    """The trace in a message's metadata, to be passed on; empty if there is none, or nonsense: anyone may write it."""
    parent, state = metadata.get(_PARENT, ""), metadata.get(_STATE, "")
    if not parent or not _VALID_PARENT.fullmatch(parent):
        return {}
    return {_PARENT: parent} | ({_STATE: state} if _VALID_STATE.fullmatch(state) else {})


def trace_of(span: Any) -> dict[str, str]:
    """The trace that names this span of OpenTelemetry as the parent; empty if the span is not valid."""
    context = span.get_span_context()
    if not context.is_valid:
        return {}
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 0xFF:02x}"
    return forwarded({_PARENT: parent, _STATE: context.trace_state.to_header()})


def current() -> Mapping[str, str]:
    """The trace of the current span, or else of the message whose handler runs here; empty if there is neither."""
    if api := opentelemetry():
        try:
            if trace := trace_of(api.get_current_span()):
                return trace
        except Exception:
            # Whatever is wrong with someone's tracing, or while it is being imported: messages are sent without it.
            _log.warning("trace not added: OpenTelemetry failed", exc_info=True)
    return _carried.get() or {}


def traced(metadata: dict[str, str], trace: Mapping[str, str]) -> dict[str, str]:
    """Encoded metadata with the trace in it; as it is if it has a `traceparent`, or if there is no room."""
    if not trace or _PARENT in metadata:
        return metadata
    for names in ((_PARENT, _STATE), (_PARENT,)):
        found = {name: trace[name] for name in names if name in trace} | metadata
        if metadata_size(found) <= ROOM_BYTES:
            return found
    return metadata


@contextmanager
def carrying(trace: Mapping[str, str]) -> Iterator[None]:
    """What is enqueued within carries this trace, if no span of its own is current."""
    token = _carried.set(trace)
    try:
        yield
    finally:
        # A call that never returns may be collected in another context, which has a trace of its own.
        with suppress(ValueError):
            _carried.reset(token)
