"""How a flow goes on when one of its messages has an outcome.  [P8]

Whoever finishes such a message writes its outcome to `flows/`, after its record and before the message goes. Whoever
then sees the outcomes of all members decides about the next step, by one conditional write, and stores its message.
Every step follows from what lies there, and may be repeated by anyone, at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from s3queue.documents.flow import NESTED, FlowDocument, Reference, decision_key, done_key, done_prefix, flow_key
from s3queue.documents.flow_outcomes import Decided, Decision, Done
from s3queue.documents.record import Failure, Outcome, Record
from s3queue.encoding import dump, format_instant
from s3queue.errors import AccessDenied, Conflict, CorruptState, InvalidRequest, NewerFormat, NotSent, Unavailable
from s3queue.keys import Keys
from s3queue.store import UNKNOWN_TRIES, listing, look_at, open_state, put_surely

from .access import QueueAccess

_log = logging.getLogger(__name__)
_OUTCOME: dict[Decided, Outcome] = {"completed": "completed", "failed": "dead", "cancelled": "cancelled"}


def member_finished(queue: QueueAccess, record: Record, of: Reference, between: Callable[[], None]) -> None:
    """A message of a flow has its outcome: note it, and go on with the flow if it was the last. Safe to repeat.

    Raises:
        Unavailable: unknown how far it came; calling again is safe.
        NotSent: it cannot be noted; the message has to be kept until it can.
    """
    try:
        node_finished(queue, of, Done.of(queue.name, record), queue.name, between)
    except NewerFormat:
        raise
    except CorruptState as error:
        # Someone overwrote the flow: no message is to blame for that.
        _log.error("flow not continued: %s, of %s/%s: %s", of.flow_id, queue.name, record.path, error)
    except AccessDenied as error:
        raise NotSent(
            f"flow {of.flow_id} not told, message kept: {queue.name}/{record.path}: {error}; give the definition of "
            f"{queue.name!r} flows=True"
        ) from error


def node_finished(
    queue: QueueAccess, of: Reference, done: Done, suffix: str, between: Callable[[], None] = lambda: None
) -> None:
    """PUT the outcome of a node; if it may be the last of its stage, look whether it is, and advance."""
    flow: FlowDocument | None = None
    failed: Decision | None = None
    if done.outcome != "completed" or of.beside == 1:
        flow = read_flow(queue, of.flow_id)
        if flow is None or not flow.has(of.node, suffix) or not _is_its_turn(queue, flow, of.node):
            return
        if flow.fails(of.node, done.outcome):
            # Before its outcome: whoever sees all outcomes finds this decision.
            reason = f"node {of.node} ({done.queue}/{done.path}) is {done.outcome}"
            failed = decide(queue, flow, flow.stage_of(of.node) + 1, "failed", reason)
            between()
    create(queue, done_key(of.flow_id, of.node, suffix), done.to_bytes())
    if flow and failed and failed.decided != "continue":
        # A canceller has more to cancel; it ends the flow, or the sweeper does.
        if failed.decided != "cancelled":
            end(queue, flow, failed, between)
        return
    between()
    # The last of them finds all others, whichever it looks for: one that is missing is later, and looks itself.
    if any(look_at(queue.store, done_prefix(of.flow_id) + probe) is None for probe in of.probes):
        return
    listed = list_done(queue, of.flow_id) if of.beside > 1 else None
    if listed is not None and len(listed) < of.beside:
        return
    if flow is None:
        flow = read_flow(queue, of.flow_id)
        if flow is None or not flow.has(of.node, suffix) or not _is_its_turn(queue, flow, of.node):
            return
    stage = flow.stage_of(of.node)
    if len(flow.nodes(stage)) > 1:
        listed = listed if listed is not None else list_done(queue, of.flow_id)
        if not listed.issuperset(flow.done(node) for node in flow.nodes(stage)):
            return
    advance(queue, flow, stage, between)


def _is_its_turn(queue: QueueAccess, flow: FlowDocument, node: int) -> bool:
    """Whether a node may have run: a step comes after the decision on it. What claims to be one before that was PUT by
    a stranger, who may write into its queue, and must not move what comes after it in another.
    """
    stage = flow.stage_of(node)
    decision = read_decision(queue, flow.flow_id, stage) if stage else None
    return not stage or (decision is not None and decision.decided == "continue")


def read_flow(queue: QueueAccess, flow_id: str) -> FlowDocument | None:
    """
    Raises:
        CorruptState: it cannot be read; NewerFormat: a newer version wrote it.
    """
    found = open_state(queue.store, flow_key(flow_id))
    return FlowDocument.read(found, flow_id) if found else None


def list_done(queue: QueueAccess, flow_id: str) -> set[str]:
    """The keys of all outcomes. One LIST for 1,000."""
    return {entry.key for page in listing(queue.store, done_prefix(flow_id)) for entry in page.objects}


def advance(queue: QueueAccess, flow: FlowDocument, stage: int, between: Callable[[], None] = lambda: None) -> Decision:
    """All nodes of a stage have an outcome: decide about the step behind it, and do what was decided."""
    wanted: Decided = "continue" if stage < flow.last else "completed"
    decision = decide(queue, flow, stage + 1, wanted, "")
    between()
    if decision.decided != "continue":
        end(queue, flow, decision, between)
    elif stage < flow.last:
        put_node(queue, flow, len(flow.members) + stage)
    return decision


def decide(queue: QueueAccess, flow: FlowDocument, step: int, decided: Decided, reason: str) -> Decision:
    """Write a decision, unless there is one already; returns the one that counts. The first writer wins."""
    key = decision_key(flow.flow_id, step)
    at, nonce = queue.clock.now(), queue.chance.token()
    ours = Decision(decided=decided, at=at, by=queue.worker_id, reason=reason[:500], nonce=nonce)
    for _ in range(UNKNOWN_TRIES):
        try:
            put_surely(queue.store, key, ours.to_bytes(), if_absent=True)
            return ours
        except Conflict:
            if found := read_decision(queue, flow.flow_id, step):
                return found
    raise Unavailable(f"unknown whether {key} was written; try again")


def read_decision(queue: QueueAccess, flow_id: str, step: int) -> Decision | None:
    found = open_state(queue.store, decision_key(flow_id, step))
    return Decision.read(found) if found else None


def end(queue: QueueAccess, flow: FlowDocument, decision: Decision, between: Callable[[], None] = lambda: None) -> None:
    """The flow has ended: tell the flow that it is a member of, then take its marker away.

    A worker leaves the marker of another queue to that queue's sweeper, and so does an operator who may not delete it.
    """
    if flow.parent:
        above, node = flow.parent
        parent = read_flow(queue, above)
        if parent is not None and parent.has(node, NESTED):
            node_finished(queue, parent.reference(node), _outcome(queue, flow, decision), NESTED, between)
    if flow.home == queue.name or queue.flows is None:
        with suppress(AccessDenied):
            queue.store.delete(flow.marker)


def _outcome(queue: QueueAccess, flow: FlowDocument, decision: Decision) -> Done:
    """Of a flow that is a member: what its last step ended with."""
    outcome = _OUTCOME[decision.decided]
    failure = Failure("FlowFailed", f"flow {flow.flow_id}: {decision.reason}") if outcome == "dead" else None
    done = Done(outcome=outcome, finished_at=decision.at, failure=failure)
    if outcome == "completed" and (found := open_state(queue.store, flow.done(flow.nodes(flow.last)[0]))):
        last = Done.read(found)
        done = replace(done, queue=last.queue, path=last.path, result=last.result, result_error=last.result_error)
    return done


def put_node(queue: QueueAccess, flow: FlowDocument, node: int) -> bool:
    """As `store_node`; False, and a line in the log, if it is refused: it is left to the sweeper of the flow's home."""
    try:
        store_node(queue, flow, node)
        return True
    except (AccessDenied, InvalidRequest, NotSent) as error:
        level = logging.WARNING if isinstance(error, NotSent) else logging.ERROR
        _log.log(level, "flow's message not stored, left to the sweeper of %s: %s", flow.home, error)
        return False


def store_node(queue: QueueAccess, flow: FlowDocument, node: int) -> None:
    """Store the message of a node, as often as it takes, unless it is there. One that was finished before is known by
    its record, and is cleared, not run.

    Raises:
        NotSent, AccessDenied, InvalidRequest: this queue's definition, its role or S3 does not allow it.
        Unavailable: unknown whether it was stored; calling again is safe.
    """
    sent = flow.message(node)
    key = Keys(sent.queue).message(sent.path)
    if queue.flows is not None and sent.queue != queue.name and sent.queue not in (queue.sends_to or ()):
        raise NotSent(f"{key}: sends_to of the definition of {queue.name!r} does not name {sent.queue!r}")
    unknown: Unavailable | None = None
    for _ in range(UNKNOWN_TRIES):
        try:
            queue.store.put(
                key, sent.body, if_absent=True, metadata=sent.metadata, content_type=sent.content_type, once=True
            )
            queue.events.emit(
                "message.sent", queue=queue.name, path=f"flow {flow.flow_id}", to=key, size=len(sent.body)
            )
            return
        except Conflict:
            return
        except Unavailable as error:
            unknown = error
    raise unknown or Unavailable(f"unknown whether {key} was stored; try again")


def create_flow(queue: QueueAccess, flow: FlowDocument) -> bool:
    """PUT flow.json unless one is there; whether there surely was none.

    Its bytes are those of every start of this flow: after an unknown answer nobody can tell whose they are. Then it
    counts as there before, so that nothing runs again of a flow that has ended.  [P8]
    """
    key, unknown = flow_key(flow.flow_id), None
    for _ in range(UNKNOWN_TRIES):
        try:
            queue.store.put(key, flow.to_bytes(), if_absent=True, once=True)
            return True
        except Conflict:
            return False
        except Unavailable as error:
            unknown = error
            if queue.store.head(key):
                return False
    raise unknown or Unavailable(f"unknown whether {key} was stored; try again")


def put_marker(queue: QueueAccess, flow: FlowDocument) -> None:
    """By which the sweeper finds a flow: before its document, because a flow without one would never be repaired. It is
    another one each time: whoever deletes an old one does not delete this one.
    """
    queue.store.put(flow.marker, dump({"at": format_instant(queue.clock.now())}))


def create(queue: QueueAccess, key: str, body: bytes) -> bool:
    """PUT unless something is there; whether this one is, or one like it."""
    try:
        put_surely(queue.store, key, body, if_absent=True)
        return True
    except Conflict:
        return False
