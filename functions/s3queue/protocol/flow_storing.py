"""How a flow and its members are stored: by whoever starts it, by whoever finishes a message that did, by the sweeper.
[P8]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from s3queue.documents.flow import FLOWS, FlowDocument, decision_key, flow_key, started_key
from s3queue.documents.flow_outcomes import Decision
from s3queue.documents.record import Record
from s3queue.documents.sends import Send
from s3queue.encoding import dump
from s3queue.errors import AccessDenied, CorruptState, InvalidRequest, NotSent
from s3queue.store import listing

from .access import QueueAccess
from .flow_progress import create, create_flow, put_marker, put_node, read_decision, read_flow

#: Stores the message of one node; False, or an error, if it is refused.
PutNode = Callable[[QueueAccess, FlowDocument, int], bool | None]


def put_flow(queue: QueueAccess, flow: FlowDocument, put: PutNode = put_node) -> bool:
    """Store the document of a flow, behind its marker, and all its messages; as `put_members`."""
    put_marker(queue, flow)
    if not create_flow(queue, flow):
        return put_missing(queue, flow, put)
    return put_members(queue, flow, range(len(flow.members)), put)


def put_missing(queue: QueueAccess, flow: FlowDocument, put: PutNode = put_node) -> bool:
    """`put_members` for a flow that was there before. A member that has an outcome is left out: should its record be
    gone by now, it would run again.
    """
    found = look(queue, flow)
    if found.is_started or found.decision:
        return True
    return put_members(queue, flow, [node for node in flow.nodes(0) if flow.done(node) not in found.done], put)


def put_members(queue: QueueAccess, flow: FlowDocument, nodes: Iterable[int], put: PutNode = put_node) -> bool:
    """Store these members, and note that all were; False, without that note, if some were refused. Safe to repeat.

    Whoever finds the note takes a member without message and record for one that someone deleted.
    """
    is_whole = True
    for node in nodes:
        member = flow.node(node)
        if isinstance(member, FlowDocument):
            is_whole &= put_flow(queue, replace(member, trace=flow.trace), put)
        else:
            is_whole &= put(queue, flow, node) is not False
    if is_whole:
        create(queue, started_key(flow.flow_id), dump({}))
    return is_whole


@dataclass(slots=True)
class Found:
    """What lies under `flows/{id}/`. One LIST for 1,000 objects."""

    done: set[str] = field(default_factory=set)
    #: How many steps were decided on, and what about the last of them.
    steps: int = 0
    decision: Decision | None = None
    is_started: bool = False

    @property
    def stage(self) -> int:
        """Which stage is at work, or was when the flow ended."""
        return self.steps if self.decision is None or self.decision.decided == "continue" else self.steps - 1

    @property
    def is_over(self) -> bool:
        return self.decision is not None and self.decision.decided != "continue"


def look(queue: QueueAccess, flow: FlowDocument) -> Found:
    """
    Raises:
        CorruptState: the last decision cannot be read, or lets a step come that the flow does not have.
    """
    found = Found()
    keys = {entry.key for page in listing(queue.store, f"{FLOWS}{flow.flow_id}/") for entry in page.objects}
    found.is_started = started_key(flow.flow_id) in keys
    while decision_key(flow.flow_id, found.steps + 1) in keys and found.steps <= flow.last:
        found.steps += 1
    if found.steps:
        found.decision = read_decision(queue, flow.flow_id, found.steps)
    if found.steps > flow.last and not found.is_over:
        raise CorruptState(f"{decision_key(flow.flow_id, found.steps)} continues with a step that the flow has not")
    stages = range(flow.last + 1)
    found.done = {flow.done(node) for stage in stages for node in flow.nodes(stage)} & keys
    return found


def targets(send: Send, key: str) -> set[str]:
    """The queues of all members and steps of the flow that a send starts; `key` is for the error.

    Raises:
        CorruptState: there is no flow in it.
    """
    return {*_queues(FlowDocument.from_body(send.body, key))}


def _queues(flow: FlowDocument) -> Iterator[str]:
    for one in (*flow.members, *flow.steps):
        if isinstance(one, Send):
            yield one.queue
        else:
            yield from _queues(one)


def start_flow(queue: QueueAccess, record: Record, body: bytes, between: Callable[[], None]) -> bool:
    """Start the flow that a completed message asked for; whether it was new. Safe to repeat: one that is there is not
    touched, if all its members were stored, or something was decided about it.

    Raises:
        NotSent, CorruptState: it cannot be stored; the message has to be kept until it can.
        Unavailable: unknown how far it came; calling again is safe.
    """
    what = f"{queue.name}/{record.path}"
    flow = FlowDocument.from_body(body, what)
    if flow.home != queue.name or queue.flows is False:
        raise NotSent(
            f"flow not started, message kept: {what}: the definition of {queue.name!r} has no flows=True, or its flow "
            f"{flow.flow_id} is at home in {flow.home!r}"
        )

    def put(queue: QueueAccess, flow: FlowDocument, node: int) -> bool:
        between()
        return put_node(queue, flow, node)

    try:
        put_marker(queue, flow)
        is_new = create_flow(queue, flow)
        if is_new:
            put_members(queue, flow, range(len(flow.members)), put)
        else:
            put_missing(queue, read_flow(queue, flow.flow_id) or flow, put)
    except (AccessDenied, InvalidRequest) as error:
        raise NotSent(f"flow not started, message kept: {what}: {error}") from error
    if is_new:
        key = flow_key(flow.flow_id)
        queue.events.emit("message.sent", queue=queue.name, path=record.path, to=key, size=len(body))
    return is_new
