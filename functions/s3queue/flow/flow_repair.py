"""What stores a flow's messages, ends a flow that is cancelled, and repairs what a crash left of either.  [P8]"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

from s3queue.documents.flow import NESTED, FlowDocument, flow_key, message_name
from s3queue.documents.flow_outcomes import Decision, Done
from s3queue.documents.message import Generation
from s3queue.documents.record import Failure
from s3queue.documents.sends import Send
from s3queue.errors import (
    AccessDenied,
    Conflict,
    CorruptState,
    InvalidRequest,
    MessageNotFound,
    NewerFormat,
    NotSent,
    Unavailable,
)
from s3queue.keys import Keys
from s3queue.paths import due_of
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.flow_progress import (
    advance,
    create_flow,
    decide,
    end,
    node_finished,
    put_marker,
    put_node,
    read_flow,
)
from s3queue.protocol.flow_storing import Found, look, put_flow, put_members
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.protocol.outcomes import Outcomes
from s3queue.store import ObjectInfo, listing, look_at

_log = logging.getLogger(__name__)
#: A message that has lain for so long may be dead, and nobody can read it. Others are at work, or wait for their turn.
LIES_FOR_LONG = timedelta(hours=1)


def repair(queue: QueueAccess, flow_id: str) -> bool | None:
    """Do what a process that crashed, or could not, has left undone; whether the flow is over, None if there is none,
    or if another queue is its home: whoever wrote the marker here found the flow's id taken.

    Raises:
        CorruptState: what lies there cannot be read. Unavailable: unknown how far it came; calling again is safe.
    """
    flow = read_flow(queue, flow_id)
    if flow is None or flow.home != queue.name:
        return None
    found = look(queue, flow)
    stage = found.stage
    waiting = [node for node in flow.nodes(stage) if flow.done(node) not in found.done]
    if found.decision and found.is_over:
        if found.decision.decided == "cancelled" and not cancel_nodes(queue, flow, found):
            # What nobody can describe cannot be cancelled; it dies, and the next look ends the flow.
            _finish_dead_in_place(queue, flow, _present(queue, flow, waiting))
            return False
        end(queue, flow, found.decision)
        return True
    present = _present(queue, flow, waiting)
    unknown = [node for node in waiting if node not in present and not _finish_recorded(queue, flow, node)]
    _finish_dead_in_place(queue, flow, present)
    if stage == 0 and not found.is_started:
        put_members(queue, flow, unknown)
    elif stage > 0:
        # Decided, and perhaps never stored.
        for node in unknown:
            put_node(queue, flow, node)
    else:
        for node in unknown:
            _note_vanished(queue, flow, node)
    if not waiting:
        advance(queue, flow, stage)
    return False


def _present(queue: QueueAccess, flow: FlowDocument, nodes: list[int]) -> dict[int, ObjectInfo]:
    """Those of these nodes that have a message now, and of flows, a document. One LIST per queue and place."""
    found: dict[int, ObjectInfo | None] = {}
    listed: dict[str, dict[str, ObjectInfo]] = {}
    for node in nodes:
        member = flow.node(node)
        if isinstance(member, FlowDocument):
            found[node] = look_at(queue.store, flow_key(member.flow_id))
            continue
        prefix = Keys(member.queue).message(_name(flow, member))
        if prefix not in listed:
            listed[prefix] = _listed(queue, prefix)
        found[node] = listed[prefix].get(Keys(member.queue).message(flow.path(node)))
    return {node: info for node, info in found.items() if info}


def _name(flow: FlowDocument, member: Send) -> str:
    """How the paths of all members begin that are at the same place as this one."""
    return f"{member.place}{message_name(flow.flow_id, 0)[:-4]}"


def _listed(queue: QueueAccess, prefix: str) -> dict[str, ObjectInfo]:
    return {entry.key: entry for page in listing(queue.store, prefix) for entry in page.objects}


def _finish_dead_in_place(queue: QueueAccess, flow: FlowDocument, present: Mapping[int, ObjectInfo]) -> None:
    """Note the outcome of what is dead although it lies there: nobody can read it, so nobody can move it, and its
    record may not say that it is a flow's.  [P8]

    Only what lies for long is looked for: one LIST per queue and place, and a GET for each that has a record.
    """
    recorded: dict[str, dict[str, ObjectInfo]] = {}
    for node, info in present.items():
        member = flow.node(node)
        if isinstance(member, FlowDocument):
            continue
        path, keys = flow.path(node), Keys(member.queue)
        if info.at - max(info.modified_at, due_of(path) or info.modified_at) < LIES_FOR_LONG:
            continue
        prefix = keys.record(_name(flow, member))
        if prefix not in recorded:
            recorded[prefix] = _listed(queue, prefix)
        if keys.record(path) not in recorded[prefix]:
            continue
        record = Outcomes(queue.store, keys, queue.chance).read(path)
        generation = Generation(etag=info.etag, put_at=info.modified_at)
        # What was PUT there anew, by a replay, has an outcome of its own.
        if record and record.outcome == "dead" and record.generation == generation:
            node_finished(queue, flow.reference(node), Done.of(member.queue, record), member.queue)


def _finish_recorded(queue: QueueAccess, flow: FlowDocument, node: int) -> bool:
    """Whether a message that is gone has a record: then its outcome is noted now. In this order: a record is written
    before its message goes.
    """
    member = flow.node(node)
    if isinstance(member, FlowDocument):
        return False
    record = Outcomes(queue.store, Keys(member.queue), queue.chance).read(flow.path(node))
    if record is None:
        return False
    node_finished(queue, flow.reference(node), Done.of(member.queue, record), member.queue)
    return True


def _note_vanished(queue: QueueAccess, flow: FlowDocument, node: int) -> None:
    """All members were stored, and this one is gone without a record: someone deleted it."""
    member = flow.node(node)
    if isinstance(member, FlowDocument):
        put_flow(queue, replace(member, trace=flow.trace))
        return
    failure = Failure("MessageVanished", "someone deleted the message before it was finished; not s3queue")
    path = flow.path(node)
    _log.warning("member of a flow vanished: %s, node %s: %s/%s", flow.flow_id, node, member.queue, path)
    done = Done(outcome="dead", queue=member.queue, path=path, finished_at=queue.clock.now(), failure=failure)
    node_finished(queue, flow.reference(node), done, member.queue)


def cancel_flow(
    queue: QueueAccess, flow: FlowDocument, reason: str, is_late: Callable[[], bool] = lambda: False
) -> Decision:
    """Decide that no further step comes, then cancel what waits or is at work; returns what the flow ended with.

    Safe to repeat. A flow that has ended stays as it is. What is left when it `is_late`, the sweeper cancels.
    """
    for step in range(1, flow.last + 2):
        decision = decide(queue, flow, step, "cancelled", reason)
        if decision.decided != "continue":
            break
    if decision.decided == "cancelled" and cancel_nodes(queue, flow, look(queue, flow), is_late):
        end(queue, flow, decision)
    return decision


def cancel_nodes(
    queue: QueueAccess, flow: FlowDocument, found: Found, is_late: Callable[[], bool] = lambda: False
) -> bool:
    """Cancel what has no outcome yet; False if some of it could not be cancelled now."""
    is_whole = True
    for node in flow.nodes(found.stage):
        if flow.done(node) in found.done:
            continue
        if is_late():
            return False
        # Whoever decided on a step, or is starting the flow, may yet store it.
        may_come = found.stage > 0 or not found.is_started
        try:
            is_whole &= _cancel_node(queue, flow, node, is_late, may_come=may_come)
        except (NotSent, AccessDenied, Conflict, CorruptState, InvalidRequest, Unavailable) as error:
            _log.warning("node of a cancelled flow not cancelled: %s, node %s: %s", flow.flow_id, node, error)
            # Bytes that nobody can read, and calls that are wrong, are the same at the next try.
            is_whole &= isinstance(error, (CorruptState, InvalidRequest)) and not isinstance(error, NewerFormat)
    return is_whole


def _cancel_node(
    queue: QueueAccess, flow: FlowDocument, node: int, is_late: Callable[[], bool], *, may_come: bool
) -> bool:
    member = flow.node(node)
    if isinstance(member, Send):
        return _cancel_message(queue, flow, node, member.queue, may_come=may_come)
    if read_flow(queue, member.flow_id) is None:
        if not may_come:
            done = Done(outcome="cancelled", finished_at=queue.clock.now())
            node_finished(queue, flow.reference(node), done, NESTED)
            return True
        # As a message: once it is there, and cancelled, whoever comes later stores nothing of it.
        put_marker(queue, member)
        create_flow(queue, member)
    cancel_flow(queue, member, f"flow {flow.flow_id} was cancelled", is_late)
    return True


def _cancel_message(queue: QueueAccess, flow: FlowDocument, node: int, name: str, *, may_come: bool) -> bool:
    from .cancel import cancel

    target = QueueAccess(
        store=queue.store,
        name=name,
        settings=queue.settings,
        worker_id=queue.worker_id,
        clock=queue.clock,
        chance=queue.chance,
        events=queue.events,
        flows=queue.flows,
        # What a record has sent is for whoever knows the definition of its queue; an operator and another's sweeper
        # may do more than that queue may.
        sends_to=(queue.sends_to or ()) if name == queue.name else (),
    )
    leases = LeaseProtocol(target, Outcomes(target.store, target.keys, target.chance, target.perform))
    path = flow.path(node)
    try:
        cancel(leases, path)
    except MessageNotFound:
        if may_come:
            # With a record, what comes late is cleared, not run.
            if not put_node(queue, flow, node):
                # A sweeper never may; whoever else cancels leaves it to the sweeper.
                return queue.flows is not None
            cancel(leases, path)
    return True
