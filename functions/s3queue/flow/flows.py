"""Flow: members that run side by side, and steps that come after them, each once.  [P8]

`Flow` makes one; flow_states.py is for whoever looks at those that are there, or cancels one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from s3queue.clock import Chance, Clock, RandomChance, SystemClock
from s3queue.documents.flow import (
    FLOW_BYTES,
    MOST_MEMBERS,
    MOST_STEPS,
    FlowDocument,
    OnDead,
    check_id,
)
from s3queue.documents.sends import STARTS, Send
from s3queue.errors import Conflict, InvalidRequest
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.flow_progress import create_flow, put_marker, read_flow, store_node
from s3queue.protocol.flow_storing import put_members, put_missing
from s3queue.settings import QueueSettings
from s3queue.store import ObjectStore
from s3queue.tracing import current

from .flow_states import Flows, FlowState, access


@runtime_checkable
class Defined(Protocol):
    """A queue's definition, as far as a flow asks it."""

    name: str
    flows: bool

    def check(self, body: bytes) -> None: ...


class Flow:
    """Messages of any queues of a bucket that belong together.

    `add` gives it members, which run side by side; `then` gives it steps, which run one after the other when all
    members have an outcome. Nothing is written before `start`.
    """

    def __init__(
        self,
        store: ObjectStore | QueueAccess,
        *,
        id: str | None = None,
        on_dead: OnDead = "fail",
        clock: Clock | None = None,
        chance: Chance | None = None,
    ) -> None:
        """
        Args:
            store: the bucket: `queue.store`, or a queue of it.
            id: of a flow that must not be started twice, such as `order-17`; without one, it gets an id of its own.
            on_dead: what happens if a message of it dies, or is cancelled: `fail` ends the flow, `continue` goes on,
                and the next step sees the failure.

        Raises:
            InvalidName, InvalidRequest: an argument is wrong.
        """
        queue = store if isinstance(store, QueueAccess) else None
        self.store: ObjectStore = queue.store if queue else store  # type: ignore[assignment]
        self._clock = clock or (queue.clock if queue else SystemClock())
        self._chance = chance or (queue.chance if queue else RandomChance())
        self._settings = queue.settings if queue else QueueSettings()
        if on_dead not in ("continue", "fail"):
            raise InvalidRequest(f"on_dead must be 'continue' or 'fail', not {on_dead!r}")
        self.id = check_id(id) if id is not None else self._chance.name(self._clock.now())
        #: Whether the caller chose it.
        self.has_own_id = id is not None
        self.on_dead: OnDead = on_dead
        self._members: list[Send | Flow] = []
        self._steps: list[Send] = []

    def add(self, queue: str | Defined | Flow, body: Any = None, **options: Any) -> int:
        """A member, to run side by side with the others; returns its number, from 0. Options are those of
        `Context.send`: priority, delay, due_at, metadata, content_type.

        A member may itself be a flow, with a step: what its last step ends with is the member's outcome.

        Raises:
            InvalidRequest: an argument is wrong, there are too many, or steps were added before.
        """
        if self._steps:
            raise InvalidRequest(f"flow {self.id} has a step already: add its members first, then its steps")
        if len(self._members) >= MOST_MEMBERS:
            raise InvalidRequest(f"flow {self.id} has {MOST_MEMBERS} members, which is the most: nest flows for more")
        if isinstance(queue, Flow):
            self._members.append(self._nested(queue, body, options))
        else:
            self._members.append(self._send(queue, body, options))
        return len(self._members) - 1

    def then(self, queue: str | Defined, body: Any = None, **options: Any) -> Flow:
        """A step behind the members, or behind the last step. Its handler finds their outcomes in
        `context.flow.results`. A `delay` counts from this call, not from when the step's turn comes: it runs after
        both.

        Raises:
            InvalidRequest: an argument is wrong, or the flow has no member.
        """
        if not self._members:
            raise InvalidRequest(f"flow {self.id} has no member: add one before the step that comes after it")
        if len(self._steps) >= MOST_STEPS:
            raise InvalidRequest(f"flow {self.id} has {MOST_STEPS} steps, which is the most")
        self._steps.append(self._send(queue, body, options))
        return self

    def start(self) -> str:
        """Store the flow, then its messages; returns its id. Calling it again is safe: nothing runs twice, and what a
        crash left out is stored. If nobody calls it again, the sweeper stores it.

        Raises:
            InvalidRequest: no member, or too large; nothing was written.
            Conflict: another flow has this id.
            AccessDenied: a member may not be stored, which the text names; the flow waits. Grant it, and call again.
            Unavailable: unknown how far it came; calling again is safe.
        """
        flow = self.document()
        flow.check()
        flow = _traced(flow, current())
        queue = access(self.store, flow.home, self._clock, self._chance)
        put_marker(queue, flow)
        if not create_flow(queue, flow):
            stored = read_flow(queue, self.id)
            if stored is None or not stored.is_like(flow):
                raise Conflict(f"flow {self.id} is there already, with other messages: give this one another id")
            put_missing(queue, stored, store_node)
            return self.id
        put_members(queue, flow, range(len(flow.members)), store_node)
        return self.id

    def cancel(self, reason: str = "") -> FlowState:
        """See `Flows.cancel`."""
        return self._flows().cancel(self.id, reason)

    def state(self) -> FlowState:
        """See `Flows.show`."""
        return self._flows().show(self.id)

    def document(self, home: str = "", parent: tuple[str, int] | None = None) -> FlowDocument:
        """The flow as it is stored.

        Raises:
            InvalidRequest: it has no member.
        """
        if not self._members:
            raise InvalidRequest(f"flow {self.id} has no member: add one")
        home = home or next(_queues(self._members))
        above = parent[0] if parent else self.id
        members = tuple(
            one.document(home, (above, number)) if isinstance(one, Flow) else one
            for number, one in enumerate(self._members)
        )
        return FlowDocument(
            # Within another flow, its place is its id: whoever stores the other one stores the same.
            flow_id=f"{above}.{parent[1]:04d}" if parent else self.id,
            home=home,
            members=members,
            steps=tuple(self._steps),
            on_dead=self.on_dead,
            parent=parent,
        )

    def send(self, home: str, flow_id: str, trace: Mapping[str, str]) -> tuple[Send, set[str]]:
        """What starts this flow when it is stored, under this id, and the queues of its messages; see `Context.start`.
        The messages carry the trace.

        Raises:
            InvalidRequest: no member, too large, or the caller chose an id.
        """
        if self.has_own_id:
            raise InvalidRequest(
                f"flow {self.id!r} has an id of its own: leave it away; the id of a flow that a handler starts follows "
                "from the message"
            )
        self.id = check_id(flow_id)
        flow = self.document(home)
        flow.check()
        flow = _traced(flow, trace)
        return Send(queue=home, place=STARTS, body=flow.to_bytes()), {*_queues(self._members), *_step_queues(self)}

    def _flows(self) -> Flows:
        return Flows(self.store, clock=self._clock, chance=self._chance, settings=self._settings)

    def _nested(self, flow: Flow, body: Any, options: Mapping[str, Any]) -> Flow:
        if body is not None or options:
            raise InvalidRequest("a member that is a flow has no body and no options of its own")
        if flow is self or any(isinstance(one, Flow) for one in flow._members):
            raise InvalidRequest("flows can be nested once: a member that is a flow has messages as members")
        if not flow._steps:
            raise InvalidRequest("a flow within a flow needs a step: what that ends with is the member's outcome")
        return flow

    def _send(self, queue: str | Defined, body: Any, options: Mapping[str, Any]) -> Send:
        name = queue if isinstance(queue, str) else queue.name
        if "group" in options:
            raise InvalidRequest(f"a message of a flow has no group: let its handler send to one ({name!r})")
        send = Send.of(name, body, now=self._clock.now(), **options)
        if not isinstance(queue, str):
            if not queue.flows:
                raise InvalidRequest(f"queue {name!r} is not for flows: give its definition flows=True")
            queue.check(send.body)
        # A queue that is defined elsewhere may take more, or less; what no queue takes by default is a mistake here.
        limit = queue.settings.max_message_size if hasattr(queue, "settings") else QueueSettings().max_message_size
        if len(send.body) > limit:
            raise InvalidRequest(f"the body for {name!r} has {len(send.body)} bytes, at most {limit}")
        return send


def _traced(flow: FlowDocument, trace: Mapping[str, str]) -> FlowDocument:
    """With the trace, once for all its messages; without, if a flow that is as large as can be leaves no room."""
    if not trace:
        return flow
    found = replace(flow, trace=trace)
    return found if len(found.to_bytes()) <= FLOW_BYTES else flow


def _step_queues(flow: Flow) -> Iterator[str]:
    for one in flow._members:
        if isinstance(one, Flow):
            yield from _step_queues(one)
    yield from (step.queue for step in flow._steps)


def _queues(members: list[Send | Flow]) -> Iterator[str]:
    for one in members:
        if isinstance(one, Flow):
            yield from _queues(one._members)
        else:
            yield one.queue
