"""define(): a queue of the application, its settings and its handler. Annotations say how payloads are parsed."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Iterable
from typing import IO, Any, BinaryIO, get_args, get_origin

from s3queue.documents.message import Message
from s3queue.errors import InvalidRequest, Reject
from s3queue.events import Events
from s3queue.keys import check_queue
from s3queue.settings import QueueSettings

from .hooks import complete_hook, error_hook
from .loop import loop
from .parsing import described, parser
from .signatures import accepts, annotation_of, code_of, takes_two

if typing.TYPE_CHECKING:
    from s3queue.documents.schedule import Missed, Schedule
    from s3queue.encoding import Json
    from s3queue.queue import Queue

Handler = Callable[..., Any]
#: Annotations that ask for the payload as a stream.
_STREAMS = (BinaryIO, IO, IO[bytes])


class Definition:
    """A queue and its handler. Made by `define`, in one module of `functions/queues` each."""

    def __init__(
        self,
        name: str,
        settings: QueueSettings,
        sends_to: Iterable[str] = (),
        results_to: str | None = None,
        flows: bool = False,
    ) -> None:
        self.name = check_queue(name)
        self.settings = settings
        #: The queues that the handler may send to.
        self.sends_to = _checked(name, sends_to, results_to)
        #: The queue that the handler's results are sent to.
        self.results_to = results_to
        #: Whether its messages may be part of flows.
        self.flows = flows
        if results_to and settings.uses_spark:
            raise InvalidRequest(f"queue {name!r}: results_to is not for Spark: let a light queue send what a run made")
        #: Hooks for this queue's events, e.g. `queue.events.on("message.dead", page_someone)`.
        self.events = Events()
        self.function: Handler | None = None
        self._parse: Callable[[bytes], Any] = lambda body: body
        self._wants_context = True
        #: The handler takes the payload as a stream, of any size.
        self.takes_stream = False
        #: The handler takes the lines of a batch as one list.
        self.takes_list = False
        #: Where `enqueue` sends to, by the URL that the environment named.
        self.connected: dict[str, Queue] = {}
        #: What `every` was called with; whoever sweeps the queue puts their messages.
        self.schedules: tuple[Schedule, ...] = ()

    def handler(self, function: Handler) -> Handler:
        """Decorator. The annotation of the first parameter says how payloads are parsed: a pydantic model, a dataclass,
        dict, list, str, bytes, BinaryIO, or `list[Model]` for the lines of a batch. A second parameter is the Context.

        If the handler returns, the message is completed with this result. If it raises, the message is retried with
        backoff; after `Retry(after=30)` in 30 seconds. After `Reject` the message is dead at once.
        """
        if self.function is not None:
            raise InvalidRequest(f"queue {self.name!r} already has a handler: {_name(self.function)}")
        code = code_of(function)
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            raise InvalidRequest(
                f"the handler of {self.name!r} is a generator: calling it runs nothing; write a function that returns"
            )
        if not (accepts(function, 1) or accepts(function, 2)):
            raise InvalidRequest(
                f"the handler of {self.name!r} must take one or two parameters, by position: the message and, if "
                f"needed, the context; not {_name(function)}"
            )
        self._wants_context = takes_two(function)
        try:
            annotation = annotation_of(function)
        except Exception as error:
            raise InvalidRequest(
                f"the annotation of the first parameter of {_name(function)} cannot be evaluated "
                f"({type(error).__name__}: {error}): it says how the payloads of {self.name!r} are parsed, so its "
                "module must define or import that, also at run time, before the handler"
            ) from error
        self.takes_stream = annotation in _STREAMS
        self.takes_list = get_origin(annotation) is list and bool(get_args(annotation))
        if self.settings.collect and not self.takes_list:
            raise InvalidRequest(
                f"queue {self.name!r} collects messages: the first parameter of its handler must be annotated as a "
                "list, such as list[Order]"
            )
        if self.takes_list and self.results_to:
            raise InvalidRequest(f"queue {self.name!r}: results_to needs one result a message, not one for a list")
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

    def on_error(self, hook: Handler) -> Handler:
        """Decorator: `hook(error, message, context)` is called after every failed attempt, `async` or not.

        The error is what the handler raised; `AttemptFailed` if no handler raised: the lease expired, the handler timed
        out, lines of a batch failed. A hook with one parameter gets the event's fields instead.

        Raises:
            InvalidRequest: the hook takes neither three parameters nor one.
        """
        told = error_hook(hook)
        self.events.on("message.retry", told)
        self.events.on("message.dead", told)
        return hook

    def on_complete(self, hook: Handler) -> Handler:
        """Decorator: `hook(message, result, context)` is called after every completion, `async` or not.

        The result is what the handler returned; of a batch, line → stored result. A hook with one parameter gets the
        event's fields instead.

        Raises:
            InvalidRequest: the hook takes neither three parameters nor one.
        """
        self.events.on("message.completed", complete_hook(hook))
        return hook

    def parse(self, body: bytes) -> Any:
        """The payload as the handler's annotation asks for it.

        Raises:
            Reject: it cannot be parsed; trying again will not help.
        """
        try:
            return self._parse(body)
        # Whatever it is: a model's own checks may raise anything, and a line that does must not take its batch along.
        except Exception as error:
            raise Reject(f"the payload cannot be parsed: {error}") from error

    def check(self, body: bytes) -> None:
        """Whether the handler could take this payload; without a handler, or for a stream, any.

        Raises:
            InvalidRequest: it could not; the text names the field.
        """
        if self.function is None or self.takes_stream:
            return
        try:
            found = json.loads(body) if self.takes_list else None
            items = [json.dumps(item).encode() for item in found] if isinstance(found, list) else [body]
            for item in items:
                self._parse(item)
        except Exception as error:
            raise InvalidRequest(
                f"the handler of {self.name!r} cannot take this payload: {described(error)}"
            ) from error

    def connect(self, url: str | None = None, **options: Any) -> Queue:
        """This queue in the bucket at `url` (`s3://my-bucket`), with its settings. Whatever is enqueued through it is
        checked first, as `enqueue` does. Options are those of `s3queue.connect`.

        Without a URL, the bucket is the one that `S3QUEUE_URL` names, in a deployed function the function's own.

        Raises:
            InvalidRequest: no bucket is known, or the URL names another queue.
        """
        from .producing import connected

        return connected(self, url, **options)

    def enqueue(self, body: Any, **options: Any) -> str:
        """Add a message to this queue and return its path; options are those of `Queue.enqueue`.

        The bucket is that of `connect()`. The payload is parsed first, as the handler's annotation says.

        Raises:
            InvalidRequest: the handler could not take it; the text names the field, and nothing was written. As well
                as all that `Queue.enqueue` raises.
        """
        return self.connect().enqueue(body, **options)

    def enqueue_many(self, bodies: Iterable[Any], **options: Any) -> list[str]:
        """Add messages as batches; options are those of `Queue.enqueue_many`. Each is checked as in `enqueue`.

        Raises:
            InvalidRequest: the handler could not take one of them; the batches before it are enqueued.
        """
        return self.connect().enqueue_many(bodies, **options)

    async def aenqueue(self, body: Any, **options: Any) -> str:
        """`enqueue`, without blocking the event loop."""
        from s3queue.flow.async_calls import in_thread

        return await in_thread(self.enqueue, body, **options)

    async def aenqueue_many(self, bodies: Iterable[Any], **options: Any) -> list[str]:
        """`enqueue_many`, without blocking the event loop. The bodies are iterated over in another thread."""
        from s3queue.flow.async_calls import in_thread

        return await in_thread(self.enqueue_many, bodies, **options)

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
            items = [json.dumps(item).encode() for item in (found if isinstance(found, list) else [found])]
        except (ValueError, RecursionError) as error:
            raise Reject(f"the payload cannot be parsed: {error}") from error
        return [self.parse(item) for item in items]

    def call(self, argument: Any, context: Any) -> Any:
        if self.function is None:
            raise InvalidRequest(f"queue {self.name!r} has no handler: decorate a function with @queue.handler")
        result = self.function(argument, context) if self._wants_context else self.function(argument)
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise TypeError(f"the handler of {self.name!r} returned a generator, which has run nothing")
        return loop.run(result) if inspect.isawaitable(result) else result


def _name(function: Handler) -> str:
    called: str = getattr(function, "__qualname__", None) or repr(function)
    return called


def definition_for(queue: Queue, handler: Definition | Handler) -> Definition:
    """The definition of this queue's worker. It brings its settings along, see `Queue.define`; a plain handler has the
    queue's.

    Raises:
        InvalidRequest: it is another queue's.
    """
    if not isinstance(handler, Definition):
        definition = Definition(queue.name, queue.settings)
        definition.handler(handler)
        if queue.sends_to is None:
            queue.sends_to = ()
        return definition
    if handler.name != queue.name:
        raise InvalidRequest(f"the definition is of queue {handler.name!r}, the worker's queue is {queue.name!r}")
    queue.define(handler.settings)
    queue.sends_to = handler.sends_to
    queue.flows = handler.flows
    return handler


def define(
    name: str,
    *,
    sends_to: Iterable[str] = (),
    results_to: str | None = None,
    flows: bool = False,
    **options: Any,
) -> Definition:
    """A queue of this application. Options are the settings of `QueueSettings`: seconds, and sizes such as `"64 MiB"`.

    `sends_to` names the queues of the same bucket that the handler may send to, with `context.send` or `enqueue`: its
    deployed function is allowed what that takes, and may read messages and records there. A pull worker has whatever
    permissions its process has. What the handler returns, unless it is None, is sent to the queue `results_to`.

    With `flows`, its messages may be part of flows: its function may note their outcomes there. What comes after them
    goes to queues that `sends_to` names.

    Raises:
        InvalidName, InvalidRequest: the name or an option is wrong; the text says which.
    """
    return Definition(name, QueueSettings.of(**options), sends_to, results_to, flows)


def _checked(name: str, sends_to: Iterable[str], results_to: str | None) -> tuple[str, ...]:
    # A text is a sequence of letters, each a valid name.
    if isinstance(sends_to, str):
        raise InvalidRequest(f"queue {name!r}: sends_to must be a list of queues, such as [{sends_to!r}]")
    also = () if results_to is None else (results_to,)
    return tuple(dict.fromkeys(map(check_queue, (*sends_to, *also))))
