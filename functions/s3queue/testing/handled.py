"""run(): one attempt of a handler on one message, through the code that runs it when it is deployed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from s3queue.documents.record import Failure
from s3queue.documents.sends import Send
from s3queue.encoding import Json
from s3queue.errors import InvalidRequest
from s3queue.protocol.claim import Claim
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from s3queue.stores.memory import MemoryStore
from s3queue.worker.definition import Definition, Handler
from s3queue.worker.processor import AttemptEnding, Processor

from .clock import VirtualClock
from .sent import Sent

#: The queue of a plain function.
PLAIN = "tested"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How one attempt ended."""

    #: `completed`, `retried`, `postponed`, `dead`, `cancelled`; `lost`: someone else had the message by then.
    outcome: AttemptEnding
    #: What the record keeps of what the handler returned: JSON.
    result: Json = None
    #: What it has sent with `context.send`; nothing, unless it is completed.
    sends: list[Sent] = field(default_factory=list)
    #: What it logged, from INFO on, without the library's own lines.
    logs: list[str] = field(default_factory=list)
    #: What the handler raised, or the payload's error.
    error: BaseException | None = None
    #: When the next attempt is due, for `retried` and `postponed`; without the jitter of a deployed queue.
    retry_after: timedelta | None = None


def run(
    handler: Definition | Handler,
    body: Any,
    *,
    attempt: int = 1,
    metadata: Mapping[str, str] | None = None,
    content_type: str | None = None,
    clock: VirtualClock | None = None,
) -> Run:
    """Give a handler one message, as its worker would, and tell how that ended. Errors of the handler are not raised.

    `handler` is a definition, or a function: one that a definition of its module has decorated runs as that, with its
    settings and `sends_to`. The body is what `enqueue` takes; it is parsed as the handler's annotation says. The
    attempts before `attempt` have failed. Limits of the queue (rate, breaker, partitions) do not count.

    In an `async` test, an `async` handler runs in another thread, in a loop of its own, and the test's loop waits.

    Raises:
        InvalidRequest: the definition has no handler, or fewer attempts; the body or the metadata cannot be stored.
    """
    definition = definition_of(handler)
    settings = replace(
        definition.settings,
        rate=None,
        breaker=None,
        partitions=0,
        collect=0,
        paused=False,
        history=True,
        max_depth=None,
        retry_jitter=False,
    )
    if not 1 <= attempt <= settings.max_attempts:
        raise InvalidRequest(
            f"attempt must be from 1 to {settings.max_attempts}, the max_attempts of {definition.name!r}, not {attempt}"
        )
    time = clock or VirtualClock()
    queue = Queue(
        store=MemoryStore("run", clock=time),
        name=definition.name,
        settings=settings,
        clock=time,
        sends_to=definition.sends_to,
        flows=definition.flows,
    )
    path = queue.enqueue(body, metadata=metadata, content_type=content_type)
    for _ in range(attempt - 1):
        queue.leases.fail(_claimed(queue, path), Failure("Error", "an earlier attempt, of the test"), retry_after=0)
    # Only now: the hooks of the definition are told of this attempt alone.
    definition.events.pass_on(queue.events)
    observed = _Observed(queue=queue, definition=definition)
    claim = _claimed(queue, path)
    outcome = observed.process(claim)
    is_completed = outcome == "completed"
    lease = queue.read_lease(path)
    due_at = lease.lease.retry_at if lease else None
    return Run(
        outcome=outcome,
        result=claim.record.result if is_completed and claim.record else None,
        sends=[Sent.of(send) for send in observed.sent] if is_completed else [],
        logs=observed.logs,
        error=observed.error,
        retry_after=due_at - claim.now() if due_at and outcome in ("retried", "postponed") else None,
    )


def definition_of(handler: Definition | Handler) -> Definition:
    """The definition itself, or that of the function's module which has it as its handler, or one of its own.

    Raises:
        InvalidRequest: the definition has no handler.
    """
    if isinstance(handler, Definition):
        if handler.function is None:
            raise InvalidRequest(f"queue {handler.name!r} has no handler: decorate a function with @queue.handler")
        return handler
    module = sys.modules.get(getattr(handler, "__module__", None) or "")
    for found in vars(module).values() if module else ():
        if isinstance(found, Definition) and found.function is handler:
            return found
    plain = Definition(PLAIN, QueueSettings())
    plain.handler(handler)
    return plain


@contextmanager
def logs_into(lines: list[str]) -> Iterator[None]:
    """Note what is logged meanwhile, from INFO on, by everyone but the library."""
    root, listener = logging.getLogger(), _Listener(lines.append)
    level = root.level
    root.addHandler(listener)
    root.setLevel(min(level, logging.INFO))
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(listener)


def _claimed(queue: Queue, path: str) -> Claim:
    claim = queue.claim(path, read_first=True)
    assert claim is not None, f"{path} of a bucket that nobody else knows could not be claimed"
    return claim


class _Listener(logging.Handler):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] != "s3queue":
            self._note(record.getMessage())


class _Observed(Processor):
    """A processor that remembers what the call of the handler did."""

    def __init__(self, *, queue: Queue, definition: Definition) -> None:
        self.logs: list[str] = []
        self.error: BaseException | None = None
        self.sent: Sequence[Send] = ()
        super().__init__(queue=queue, definition=definition, around_call=lambda claim, lines: logs_into(self.logs))

    def end(
        self,
        claim: Claim,
        error: BaseException | None,
        *,
        result: Any = None,
        sends: Sequence[Send] = (),
        is_called: bool = True,
    ) -> AttemptEnding:
        self.error, self.sent = error, tuple(sends)
        return super().end(claim, error, result=result, sends=sends, is_called=is_called)
