"""How a flow and its members are stored: by whoever starts it, by whoever finishes a message that did, by the sweeper.
[P8]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from s3queue.documents.flow import FlowDocument, decision_key, flow_key, started_key
from s3queue.documents.record import Record
from s3queue.documents.sends import Send
from s3queue.encoding import dump
from s3queue.errors import AccessDenied, InvalidRequest, NotSent

from .access import QueueAccess
from .flow_progress import create, put_node, read_flow


def put_flow(queue: QueueAccess, flow: FlowDocument, between: Callable[[], None] = lambda: None) -> None:
    """Store the document of a flow, behind its marker, and all its messages. Safe to repeat.

    The marker comes first: a flow without one would never be repaired.
    """
    queue.store.put(flow.marker, b"")
    create(queue, flow_key(flow.flow_id), flow.to_bytes())
    put_members(queue, flow, range(len(flow.members)), between)


def put_members(
    queue: QueueAccess, flow: FlowDocument, nodes: range | list[int], between: Callable[[], None] = lambda: None
) -> None:
    """Store the members of a flow that is stored, and note that all are. `between` is called before each."""
    for node in nodes:
        between()
        member = flow.node(node)
        if isinstance(member, FlowDocument):
            put_flow(queue, member, between)
        else:
            put_node(queue, flow, node)
    create(queue, started_key(flow.flow_id), dump({}))


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
    try:
        # The marker comes first: a flow without one would never be repaired.
        queue.store.put(flow.marker, b"")
        is_new = create(queue, flow_key(flow.flow_id), flow.to_bytes())
        if not is_new:
            keys = (started_key(flow.flow_id), decision_key(flow.flow_id, 1))
            if any(queue.store.head(key) for key in keys):
                return False
            flow = read_flow(queue, flow.flow_id) or flow
        put_members(queue, flow, range(len(flow.members)), between)
    except (AccessDenied, InvalidRequest) as error:
        raise NotSent(f"flow not started, message kept: {what}: {error}") from error
    if is_new:
        key = flow_key(flow.flow_id)
        queue.events.emit("message.sent", queue=queue.name, path=record.path, to=key, size=len(body))
    return is_new
