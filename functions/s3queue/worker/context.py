"""Context: what a handler can know and do besides its message."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING, Protocol

from s3queue.documents.message import MEMBER, MOVED
from s3queue.documents.sends import STARTS, Send
from s3queue.encoding import Json
from s3queue.errors import InvalidRequest, LeaseLost, QueueError
from s3queue.paths import format_due, name_before, partition_of, partition_path, shared_partition
from s3queue.protocol.claim import Claim
from s3queue.settings import QueueSettings
from s3queue.store import ObjectStore
from s3queue.tracing import traced

if TYPE_CHECKING:
    from s3queue.flow.flow_results import FlowContext
    from s3queue.flow.flows import Flow

_log = logging.getLogger(__name__)
#: Progress is stored at most this often, so that a report does not cost a PUT each time.
PROGRESS_SECONDS = 5.0
#: `check` asks at most this often.
CHECK_SECONDS = 1.0


class Target(Protocol):
    """A queue's definition, as far as a send to it asks."""

    name: str
    settings: QueueSettings

    def check(self, body: bytes) -> None: ...


@dataclass(slots=True, kw_only=True)
class Context:
    """The second argument of a handler."""

    claim: Claim
    max_attempts: int
    #: Keeps the message: writes the lease again, or, in a worker with a heartbeat, leaves that to the next beat.
    renew: Callable[[Claim, timedelta | None], None]
    #: The line of a batch that this call is for, counted from 1; 0 for a single message or a list of lines.
    line: int = 0
    #: The queues that the definition names.
    sends_to: tuple[str, ...] = ()
    #: Whether the definition has `flows`, and whether the handler takes lists: then no flow is one message's.
    flows: bool = False
    takes_list: bool = False
    #: What this call has sent so far; it is stored if the call succeeds.
    sends: list[Send] = field(default_factory=list, repr=False)
    #: Raises Cancelled if an operator cancelled the message. One request.
    look: Callable[[Claim], None] = lambda claim: None
    #: The bucket; None where there is none, in a test.
    store: ObjectStore | None = field(default=None, repr=False)
    #: What this call sends carries this trace, unless it is given another.
    trace: Mapping[str, str] = field(default_factory=dict, repr=False)
    _flow: FlowContext | None = field(default=None, repr=False)
    _reported: float = field(default=float("-inf"), repr=False)
    _looked: float = field(default=float("-inf"), repr=False)

    @property
    def worker_id(self) -> str:
        return self.claim.lease.owner

    @property
    def attempt(self) -> int:
        """Counted from 1."""
        return self.claim.attempt

    @property
    def path(self) -> str:
        return self.claim.path

    @property
    def queue(self) -> str:
        return self.claim.message.queue

    @property
    def enqueued_at(self) -> datetime:
        return self.claim.message.enqueued_at

    @property
    def claimed_at(self) -> datetime:
        return self.claim.claimed_at

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.claim.message.metadata

    @property
    def content_type(self) -> str:
        return self.claim.message.content_type

    @property
    def fence(self) -> str:
        """Pass it to the system that the handler writes to, which should refuse an older one: a paused worker may
        continue late.
        """
        return self.claim.fence

    @property
    def flow(self) -> FlowContext | None:
        """The flow that this message belongs to, with the results of what came before; None if it belongs to none. A
        message of a flow that is replayed sees the same; what becomes of it, the flow does not know.
        """
        put_id = self.claim.message.put_id
        if self._flow is None and self.store and put_id.startswith((MEMBER, MOVED)):
            from s3queue.documents.flow import named_node, reference
            from s3queue.flow.flow_results import FlowContext

            is_known = put_id.startswith(MOVED) or reference(self.path, put_id)
            of = named_node(self.path) if is_known else None
            self._flow = FlowContext(self.store, self.queue, of) if of else None
        return self._flow

    def remaining(self) -> timedelta:
        """How long this worker still holds the message."""
        return self.claim.remaining()

    def extend(self, timeout: float | timedelta | None = None) -> None:
        """Keep the message for another `timeout` (default: the queue's) from now.

        Raises:
            LeaseLost: someone else has the message by now; stop.
            Cancelled: an operator cancelled it; stop. It is asked for every few seconds at most.
        """
        self.renew(self.claim, timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout)
        self._look(every=PROGRESS_SECONDS)

    def check(self) -> None:
        """Ask whether the message is still wanted, in a loop as often as you like: one GET a second at most.

        Raises:
            LeaseLost: this worker's time is over, and someone else may have the message; stop.
            Cancelled: an operator cancelled it; stop.
        """
        self.claim.check_alive()
        self._look(every=CHECK_SECONDS)

    def _look(self, *, every: float) -> None:
        now = self.claim.clock.monotonic()
        if now - self._looked < every:
            return
        self._looked = now
        try:
            self.look(self.claim)
        except LeaseLost:
            raise
        except QueueError as error:
            # Unknown, or not allowed: the handler goes on, and the outcome that is recorded counts anyway.
            _log.warning("not known whether it was cancelled: %s/%s: %s", self.queue, self.path, error)

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how much is done, for operators. Stored every few seconds at most.

        Raises:
            TypeError, ValueError: the fraction is not a finite number, or the text is not text.
            LeaseLost, Cancelled: as `extend`.
        """
        # Checked here: the heartbeat is written in another thread, for all messages that the worker holds.
        fraction = float(fraction)
        if not math.isfinite(fraction):
            raise ValueError(f"the fraction that is done must be a finite number, not {fraction}")
        if not isinstance(text, str):
            raise TypeError(f"the text of a progress must be a str, not {type(text).__name__}")
        self.claim.lease = replace(self.claim.lease, progress=(max(0.0, min(1.0, fraction)), text[:200]))
        now = self.claim.clock.monotonic()
        if now - self._reported >= PROGRESS_SECONDS:
            self._reported = now
            self.extend()

    def send(
        self,
        queue: str | Target,
        body: bytes | str | Json,
        *,
        priority: int = 0,
        delay: float | timedelta | None = None,
        due_at: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
        group: str | None = None,
    ) -> None:
        """Enqueue a message to another queue, once, if and only if this one is completed.  [P7]

        Nothing is written yet: an attempt that fails or dies sends nothing. A delay counts from now, by S3's clock.
        What the lines of a batch send to one queue is stored as one batch.

        What one message sends to one `group` runs in the order in which it was sent, and what the messages of a group
        send to one, in the order of these messages; no batch is made of it.  [P9]

        The queue is a name, or its definition: then the body is checked as `enqueue` does, and goes into one of its
        `partitions`, if it has some.

        Raises:
            InvalidRequest: the definition's `sends_to` does not name the queue, its handler could not take the body, or
                an argument is wrong.
        """
        name = queue if isinstance(queue, str) else queue.name
        if name not in self.sends_to:
            raise InvalidRequest(
                f"queue {self.queue!r} may not send to {name!r}: its definition has sends_to={list(self.sends_to)!r}; "
                "add the queue there"
            )
        send = Send.of(
            name,
            body,
            now=self.claim.now(),
            priority=priority,
            delay=delay,
            due_at=due_at,
            metadata=metadata,
            content_type=content_type,
            group=group,
        )
        send = replace(send, metadata=traced(dict(send.metadata), self.trace))
        self.sends.append(send if isinstance(queue, str) else self._suited(send, queue))

    def start(self, flow: Flow) -> str:
        """Start a flow, once, if and only if this message is completed; returns its id.  [P7] [P8]

        Nothing is written yet: an attempt that fails or dies starts nothing. The id follows from the message, so it is
        the same in every attempt. This queue is the flow's home. Make the flow with `Flow(context.store)`.

        Raises:
            InvalidRequest: the definition has no `flows`, or its `sends_to` does not name the queue of each member and
                step; the flow has no member, or an id of its own; or the handler takes lists, which are no message.
        """
        if not self.flows:
            raise InvalidRequest(f"queue {self.queue!r} starts no flows: give its definition flows=True")
        if self.takes_list:
            raise InvalidRequest(
                f"queue {self.queue!r} takes lists of messages, and a flow is started by one: send to a queue whose "
                "handler starts it"
            )
        generation, nth = self.claim.message.generation, sum(send.place == STARTS for send in self.sends)
        source = (self.queue, self.path, generation.etag, format_due(generation.put_at), str(self.line), str(nth))
        digest = hashlib.sha256("\0".join(source).encode("utf-8", "surrogatepass")).hexdigest()[:20]
        send, targets = flow.send(self.queue, f"{name_before(generation.put_at)}-{digest}", self.trace)
        if unnamed := sorted(targets.difference(self.sends_to)):
            raise InvalidRequest(
                f"queue {self.queue!r} may not start a flow with messages to {', '.join(map(repr, unnamed))}: its "
                f"definition has sends_to={list(self.sends_to)!r}; add the queues there"
            )
        self.sends.append(send)
        return flow.id

    def _suited(self, send: Send, target: Target) -> Send:
        """What `enqueue` of the defined queue would accept, where it would put it."""
        settings = target.settings
        if partition_of(send.place) and settings.is_mixed:
            raise InvalidRequest(
                f"queue {target.name!r} sends messages above heavy_above to Spark, and cannot have groups: use a queue "
                "without heavy_above, or with engine='spark'"
            )
        if len(send.body) > settings.max_message_size:
            raise InvalidRequest(
                f"the body for {target.name!r} has {len(send.body)} bytes; its max_message_size is "
                f"{settings.max_message_size}"
            )
        target.check(send.body)
        if not settings.partitions or send.place != "messages/":
            return send
        # Spread like names are. The record keeps the place, so it need not come out the same in another attempt.
        share = shared_partition(f"{self.fence}/{self.line}/{len(self.sends)}", settings.partitions)
        return replace(send, place=partition_path(share))

    def open(self) -> IO[bytes]:
        """The payload as a stream, of any size."""
        return self.claim.message.open()
