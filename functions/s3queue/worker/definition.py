"""define(): a queue of the application, its settings and its handler. Annotations say how payloads are parsed."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import threading
import typing
from collections.abc import Awaitable, Callable, Iterable
from typing import IO, Any, BinaryIO, TypeVar, get_args, get_origin, get_type_hints

from s3queue.documents.message import Message
from s3queue.errors import InvalidRequest, Reject
from s3queue.events import Events
from s3queue.keys import check_queue
from s3queue.settings import QueueSettings

if typing.TYPE_CHECKING:
    from s3queue.documents.schedule import Missed, Schedule
    from s3queue.encoding import Json
    from s3queue.queue import Queue

Handler = Callable[..., Any]
T = TypeVar("T")


class _Loop(threading.local):
    """This thread's event loop, for `async` handlers: made for the first, kept for the others, so that what they keep
    between messages (a session, a pool of connections) stays usable."""

    def __init__(self) -> None:
        self._runner: Any = None

    def run(self, awaitable: Awaitable[T]) -> T:
        if self._runner is None:
            # Not before: most queues have no `async` handler, and asyncio is a tenth of a cold start.
            import asyncio

            self._runner = asyncio.Runner()

        async def wait() -> T:
            return await awaitable

        result: T = self._runner.run(wait())
        return result


_loop = _Loop()
#: Annotations that ask for the payload as a stream.
_STREAMS = (BinaryIO, IO, IO[bytes])


class Definition:
    """A queue and its handler. Made by `define`, in one module of `functions/queues` each."""

    def __init__(self, name: str, settings: QueueSettings, sends_to: Iterable[str] = ()) -> None:
        self.name = check_queue(name)
        self.settings = settings
        #: The queues that the handler may enqueue to, once deployed.
        self.sends_to = _checked(name, sends_to)
        #: Hooks for this queue's events, e.g. `queue.events.on("message.dead", page_someone)`.
        self.events = Events()
        self.function: Handler | None = None
        self._parse: Callable[[bytes], Any] = lambda body: body
        self._wants_context = True
        #: The handler takes the payload as a stream, of any size.
        self.takes_stream = False
        #: The handler takes the lines of a batch as one list.
        self.takes_list = False
        #: What `every` was called with; whoever sweeps the queue puts their messages.
        self.schedules: tuple[Schedule, ...] = ()

    def handler(self, function: Handler) -> Handler:
        """Decorator. The annotation of the first parameter says how payloads are parsed: a pydantic model, a dataclass,
        dict, list, str, bytes, BinaryIO, or `list[Model]` for the lines of a batch. A second parameter is the Context.

        If the handler returns, the message is completed with this result. If it raises, the message is retried with
        backoff; after `Retry(after=30)` in 30 seconds. After `Reject` the message is dead at once.
        """
        if self.function is not None:
            raise InvalidRequest(f"queue {self.name!r} already has a handler: {self.function.__qualname__}")
        is_plain = inspect.isroutine(function) or isinstance(function, functools.partial)
        code = function if is_plain else type(function).__call__
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            raise InvalidRequest(
                f"the handler of {self.name!r} is a generator: calling it runs nothing; write a function that returns"
            )
        parameters = list(inspect.signature(function).parameters.values())
        if not 1 <= len(parameters) <= 2:
            raise InvalidRequest(
                f"the handler of {self.name!r} must take one or two parameters: the message and, if needed, the context"
            )
        self._wants_context = len(parameters) == 2
        annotation = get_type_hints(function).get(parameters[0].name, Any)
        self.takes_stream = annotation in _STREAMS
        self.takes_list = get_origin(annotation) is list and bool(get_args(annotation))
        if not self.takes_stream:
            self._parse = parser(get_args(annotation)[0] if self.takes_list else annotation)
        self.function = function
        return function

    def every(
        self,
        cron: str,
        *,
        name: str | None = None,
        tz: str = "UTC",
        body: bytes | str | Json = None,
        priority: int = 0,
        missed: Missed = "last",
    ) -> Schedule:
        """Let a message come at every instant of a cron line; see `Queue.every`. A deployed sweeper, and a pull worker
        that sweeps, knows it from here: nothing is stored before. A schedule that is taken out of the code ends.

        Raises:
            InvalidRequest: the line cannot be read or is never due, the time zone is unknown, or there are two of one
                name: give each a name.
            InvalidName, InvalidPriority, MessageTooLarge: change the call.
        """
        from s3queue.flow.schedules import schedule

        wanted = schedule(cron, name=name, tz=tz, body=body, priority=priority, missed=missed)
        if any(one.name == wanted.name for one in self.schedules):
            raise InvalidRequest(
                f"queue {self.name!r} has two schedules {wanted.name!r} ({cron}, {tz}): give each a name of its own"
            )
        self.schedules += (wanted,)
        return wanted

    def on_error(self, hook: Callable[[typing.Mapping[str, Any]], None]) -> Callable[[typing.Mapping[str, Any]], None]:
        """Decorator: called with the event's fields after every failed attempt."""
        self.events.on("message.retry", hook)
        self.events.on("message.dead", hook)
        return hook

    def on_complete(
        self, hook: Callable[[typing.Mapping[str, Any]], None]
    ) -> Callable[[typing.Mapping[str, Any]], None]:
        """Decorator: called with the event's fields after every completion."""
        self.events.on("message.completed", hook)
        return hook

    def parse(self, body: bytes) -> Any:
        """The payload as the handler's annotation asks for it.

        Raises:
            Reject: it cannot be parsed; trying again will not help.
        """
        try:
            return self._parse(body)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Reject(f"the payload cannot be parsed: {error}") from error

    def argument(self, message: Message, settings: QueueSettings | None = None) -> Any:
        """The argument for the handler of a single message. `settings` are the current ones, with `queue.json` applied.

        Raises:
            Reject: the message is larger than `max_message_size`, or cannot be parsed.
        """
        if self.takes_stream:
            return message.open()
        limit = (settings or self.settings).max_message_size
        if message.size > limit:
            raise Reject(
                f"MessageTooLarge: {message.size} bytes, max_message_size is {limit}; a BinaryIO handler has no limit"
            )
        if not self.takes_list:
            return self.parse(message.body)
        try:
            found = json.loads(message.body)
        except ValueError as error:
            raise Reject(f"the payload cannot be parsed: {error}") from error
        items = found if isinstance(found, list) else [found]
        return [self.parse(json.dumps(item).encode()) for item in items]

    def call(self, argument: Any, context: Any) -> Any:
        if self.function is None:
            raise InvalidRequest(f"queue {self.name!r} has no handler: decorate a function with @queue.handler")
        result = self.function(argument, context) if self._wants_context else self.function(argument)
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise TypeError(f"the handler of {self.name!r} returned a generator, which has run nothing")
        return _loop.run(result) if inspect.isawaitable(result) else result


def definition_for(queue: Queue, handler: Definition | Handler) -> Definition:
    """The definition of this queue's worker. It brings its settings along, see `Queue.define`; a plain handler has the
    queue's.

    Raises:
        InvalidRequest: it is another queue's.
    """
    if not isinstance(handler, Definition):
        definition = Definition(queue.name, queue.settings)
        definition.handler(handler)
        return definition
    if handler.name != queue.name:
        raise InvalidRequest(f"the definition is of queue {handler.name!r}, the worker's queue is {queue.name!r}")
    queue.define(handler.settings)
    return handler


def define(name: str, *, sends_to: Iterable[str] = (), **options: Any) -> Definition:
    """A queue of this application. Options are the settings of `QueueSettings`: seconds, and sizes such as `"64 MiB"`.

    `sends_to` names the queues of the same bucket that the handler may enqueue to: its deployed function is allowed
    exactly that. A pull worker has whatever permissions its process has.

    Raises:
        InvalidName, InvalidRequest: the name or an option is wrong; the text says which.
    """
    return Definition(name, QueueSettings.of(**options), sends_to)


def _checked(name: str, sends_to: Iterable[str]) -> tuple[str, ...]:
    # A text is a sequence of letters, each a valid name.
    if isinstance(sends_to, str):
        raise InvalidRequest(f"queue {name!r}: sends_to must be a list of queues, such as [{sends_to!r}]")
    return tuple(dict.fromkeys(map(check_queue, sends_to)))


def parser(annotation: Any) -> Callable[[bytes], Any]:
    """A function that parses bytes as the annotation says."""
    if annotation is bytes:
        return lambda body: body
    if annotation is str:
        return lambda body: body.decode()
    if hasattr(annotation, "model_validate_json"):
        validate: Callable[[bytes], Any] = annotation.model_validate_json
        return validate
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return lambda body: _as_dataclass(annotation, json.loads(body))
    if annotation in (Any, inspect.Parameter.empty, object):
        return json.loads
    wanted = get_origin(annotation) or annotation
    if wanted in (dict, list, int, float, bool):
        return lambda body: _as_kind(wanted, json.loads(body))
    raise InvalidRequest(
        f"a handler cannot take {annotation!r}: use a pydantic model, a dataclass, dict, list, str, bytes or BinaryIO"
    )


def _as_kind(wanted: type, found: Any) -> Any:
    if not isinstance(found, wanted) or (isinstance(found, bool) and wanted is not bool):
        raise TypeError(f"must be a JSON {wanted.__name__}, not {type(found).__name__}")
    return found


def _as_dataclass(wanted: type, found: Any) -> Any:
    """Nested dataclasses and plain JSON types are checked; for other types, use pydantic."""
    if not isinstance(found, dict):
        raise TypeError(f"{wanted.__name__} must be a JSON object, not {type(found).__name__}")
    hints = get_type_hints(wanted)
    values = {}
    for name, value in found.items():
        if name not in hints:
            raise TypeError(f"{wanted.__name__} has no field {name!r}")
        kind = hints[name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            value = _as_dataclass(kind, value)
        elif kind in (str, int, bool, dict, list):
            value = _as_kind(kind, value)
        elif kind is float:
            value = float(_as_kind(int, value)) if isinstance(value, int) else _as_kind(float, value)
        values[name] = value
    return wanted(**values)
