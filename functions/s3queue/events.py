"""Events: calls hooks in this process when something happens and, if the queue is set so, publishes to EventBridge."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from .errors import InvalidRequest, Unavailable

Event = Literal[
    "message.enqueued",
    "message.claimed",
    "message.processing",
    "message.completed",
    "message.sent",
    "message.retry",
    "message.released",
    "message.dead",
    "message.cancelled",
    "claim.lost",
    "workers.started",
    "workers.stopped",
    "message.postponed",
    "breaker.opened",
    "breaker.closed",
    "run.failed",
]
NAMES: tuple[Event, ...] = Event.__args__  # type: ignore[attr-defined]
#: What `events="failures"` publishes.
FAILURES: frozenset[str] = frozenset(
    {"message.retry", "message.dead", "breaker.opened", "breaker.closed", "run.failed"}
)

Hook = Callable[[Mapping[str, Any]], None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InProcess:
    """What only hooks in this process see: it is not among an event's fields, so it is never published."""

    #: The `Claim` whose attempt ended.
    claim: Any
    #: What the handler raised, or AttemptFailed.
    exception: BaseException | None = None
    #: What the handler returned, as it returned it.
    result: Any = None


class Told(dict[str, Any]):
    """An event's fields, as a hook gets them: plain values that may be published. The rest is `in_process`."""

    in_process: InProcess | None = None


#: Calls a hook, by calling the function that comes with it and with what it is told.
CallsHook = Callable[[Hook, Told, Callable[[], None]], None]


class Events:
    """Hooks by event name. A hook only listens: if it raises, the error is logged and processing continues."""

    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = {}
        self._listeners: list[Events] = []
        self._call: CallsHook = lambda hook, told, tell: tell()

    def on(self, name: Event | Literal["*"], hook: Hook) -> Hook:
        """Call `hook(fields)` whenever `name` happens; `*` means every event.

        Raises:
            InvalidRequest: there is no such event, or the hook is `async`.
        """
        if inspect.iscoroutinefunction(hook):
            raise InvalidRequest(
                f"a hook of events cannot be async, nobody would await it: {hook!r}; on_error and on_complete can be"
            )
        if name != "*" and name not in NAMES:
            raise InvalidRequest(f"there is no event {name!r}; the events are {', '.join(NAMES)}")
        self._hooks.setdefault(name, []).append(hook)
        return hook

    def pass_on(self, source: Events) -> None:
        """Also call these hooks for every event of `source`."""
        if self not in source._listeners:
            source._listeners.append(self)

    def call_through(self, call: CallsHook) -> None:
        """From now on let `call` call the hooks, those of listeners too: a worker bounds how long one takes."""
        self._call = call

    def has_hooks(self, name: Event) -> bool:
        """Whether anybody would be told: what nobody hears need not be put together."""
        hooks = self._hooks
        return bool(hooks and (name in hooks or "*" in hooks)) or any(one.has_hooks(name) for one in self._listeners)

    def emit(self, name: Event, in_process: InProcess | None = None, /, **fields: Any) -> None:
        self._emit(name, in_process, fields, self._call)

    def _emit(self, name: Event, in_process: InProcess | None, fields: Mapping[str, Any], call: CallsHook) -> None:
        for hook in (*self._hooks.get(name, ()), *self._hooks.get("*", ())):
            told = Told({"event": name, **fields})
            told.in_process = in_process
            call(hook, told, partial(_tell, hook, told))
        for listener in self._listeners:
            listener._emit(name, in_process, fields, call)


def _tell(hook: Hook, told: Told) -> None:
    try:
        hook(told)
    except _failures():
        _log.exception("event hook failed, continuing: %s", told["event"])


def _failures() -> tuple[type[BaseException], ...]:
    """What a hook may raise. Whoever raises asyncio's CancelledError has imported it."""
    return (Exception, SystemExit, getattr(sys.modules.get("asyncio"), "CancelledError", SystemExit))


def publish_to(bus: str, client: Any, which: Literal["off", "failures", "all"]) -> Hook:
    """A hook for `*` that publishes events to an EventBridge bus; `client` is boto3's `events` client.

    It raises if EventBridge did not take one: `Events.emit` logs that.
    """
    import json

    def publish(fields: Mapping[str, Any]) -> None:
        if which == "off" or (which == "failures" and fields["event"] not in FAILURES):
            return
        detail = json.dumps(dict(fields), default=str)
        answer = client.put_events(
            Entries=[{"EventBusName": bus, "Source": "s3queue", "DetailType": fields["event"], "Detail": detail}]
        )
        # What it refuses, it answers with 200: throttled, too large, no such bus.
        if answer.get("FailedEntryCount"):
            refused = answer["Entries"][0]
            raise Unavailable(
                f"EventBridge refused an event: {refused.get('ErrorCode')}: {refused.get('ErrorMessage')}"
            )

    return publish
