"""What is judged of flows: a step runs once, after all that comes before it has an outcome, with these.  [P8]"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

from s3queue.documents.flow import FlowDocument, decision_key, done_key, flow_key, reference
from s3queue.documents.flow_outcomes import Decision, Done
from s3queue.documents.message import MEMBER
from s3queue.documents.sends import Send
from s3queue.encoding import put_id_of
from s3queue.store import Object
from s3queue.worker.context import Context

from .ledger import Ledger, Life
from .started_flows import StartedFlows
from .world import World


class FlowMembers:
    """Watches the flows of one bucket, in all of its queues."""

    def __init__(self, world: World, broken: Callable[[str, str], None]) -> None:
        self._world = world
        self._broken = broken
        #: Queue → what happened in it.
        self.ledgers: dict[str, Ledger] = {}
        #: (queue, path) of every step that has run.
        self.ran: set[tuple[str, str]] = set()
        #: Paths of steps that a stranger has PUT before their time: he spoils these, and nothing that comes after them.
        self.forged: set[str] = set()
        self.started_flows = StartedFlows(world, broken)

    def _document(self, key: str, read: Callable[..., Any], *more: Any) -> Any:
        stored = self._world.objects.get(key)
        if stored is None:
            return None
        at = stored.modified_at
        found = Object(
            key=key, etag=stored.etag, size=len(stored.body), modified_at=at, at=at, stream=BytesIO(stored.body)
        )
        return read(found, *more)

    def flow(self, flow_id: str) -> FlowDocument | None:
        found: FlowDocument | None = self._document(flow_key(flow_id), FlowDocument.read, flow_id)
        return found

    def decided(self, flow_id: str, step: int) -> str:
        found: Decision | None = self._document(decision_key(flow_id, step), Decision.read)
        return found.decided if found else ""

    def flows(self) -> list[FlowDocument]:
        ids = [
            key.split("/")[1] for key in self._world.objects if key.startswith("flows/") and key.endswith("/flow.json")
        ]
        return [flow for flow in map(self.flow, ids) if flow]

    def _records(self, flow: FlowDocument, node: int) -> list[Any]:
        """The outcomes that a node's message has had; of a flow within, what was decided last."""
        member = flow.node(node)
        if isinstance(member, Send):
            lives = self.ledgers[member.queue].lives.get(flow.path(node), ())
            return [life.record for life in lives if life.record] or [one for one in lives if one.end == "removed"]
        last = [self.decided(member.flow_id, step) for step in range(1, member.last + 2)]
        return [one for one in last if one in ("completed", "failed", "cancelled")]

    # The store

    def performed(self, key: str, before: Any, after: Any) -> None:
        """Something under `flows/` was written: once, and with reason."""
        if not key.startswith("flows/"):
            if after is None and (ended := self.flow(key.rpartition("/")[2])):
                self._check_cancelled(ended)
            return  # a marker
        if before is not None:
            self._broken("P8", f"{key} was written a second time")
            return
        flow_id, kind, *rest = key.removeprefix("flows/").split("/")
        flow = self.flow(flow_id)
        if kind == "flow.json" and flow:
            self.started_flows.stored(flow)
        elif kind == "done" and flow:
            self._check_done(flow, rest[0], key)
        elif kind == "decided" and flow:
            self._check_decided(flow, int(rest[0]))

    def _check_cancelled(self, flow: FlowDocument) -> None:
        """Whoever takes the marker of a cancelled flow away leaves nothing that could run: also what was not stored yet
        has its outcome, and is cleared should it come.
        """
        decisions = [self.decided(flow.flow_id, step) for step in range(1, flow.last + 2)]
        for node in flow.nodes(decisions.index("cancelled")) if "cancelled" in decisions else ():
            if isinstance(flow.node(node), Send) and not self._records(flow, node):
                self._broken("P8", f"flow {flow.flow_id} is cancelled, and node {node} may still run")

    def _check_done(self, flow: FlowDocument, name: str, key: str) -> None:
        node, queue = int(name[:4]), name[5:]
        if not flow.has(node, queue):
            self._broken("P8", f"{key} is no node's")
            return
        done: Done = self._document(key, Done.read)
        if queue == "~" or (done.failure and done.failure.type == "MessageVanished"):
            if not self._records(flow, node) and not (queue == "~" and self._is_cancelled(flow)):
                self._broken("P8", f"{key} is noted, and nothing has ended")
            return
        records = self._records(flow, node)
        if not any(record.outcome == done.outcome and record.result == done.result for record in records):
            self._broken("P8", f"{key} says {done.outcome}, and no record does")

    def _is_cancelled(self, flow: FlowDocument) -> bool:
        return any(self.decided(flow.flow_id, step) == "cancelled" for step in range(1, flow.last + 2))

    def _check_decided(self, flow: FlowDocument, step: int) -> None:
        what = self.decided(flow.flow_id, step)
        if step > 1 and self.decided(flow.flow_id, step - 1) != "continue":
            self._broken("P8", f"flow {flow.flow_id}: step {step} is {what}, and the one before was not decided on")
        outcomes = [
            self._document(flow.done(node), Done.read) for node in flow.nodes(step - 1) if step - 1 <= flow.last
        ]
        if what in ("continue", "completed"):
            if None in outcomes:
                self._broken("P8", f"flow {flow.flow_id}: step {step} is decided before all outcomes are noted")
            elif any(done and _fails(flow, node, done.outcome) for node, done in zip(flow.nodes(step - 1), outcomes)):  # noqa: B905
                self._broken("P8", f"flow {flow.flow_id}: step {step} is decided although the flow has failed")

    def put(self, life: Life, stored: Any) -> bool:
        """A message was PUT; whether it is a flow's. A step only comes once it was decided on."""
        put_id = put_id_of(stored.metadata)
        of = reference(life.path, put_id) if put_id.startswith(MEMBER) else None
        flow = self.flow(of.flow_id) if of else None
        if of is None or flow is None:
            return False
        former = [one for ledger in self.ledgers.values() for one in ledger.lives.get(life.path, ()) if one is not life]
        life.is_repeated = any(one.record for one in former) or (life.puts > 1 and life.record is not None)
        stage = flow.stage_of(of.node)
        if stage and self.decided(flow.flow_id, stage) != "continue" and life.path not in self.forged:
            self._broken(
                "P8", f"{life.path} was stored, and decided is {self.decided(flow.flow_id, stage) or 'nothing'}"
            )
        return True

    def deleted(self, queue: str, life: Life, put_id: str) -> None:
        """A message of a flow goes only after its outcome is noted."""
        self.started_flows.deleted(life, lambda flow_id: bool(self.decided(flow_id, 1)))
        of = reference(life.path, put_id) if put_id.startswith(MEMBER) else None
        if of is None or self.flow(of.flow_id) is None or life.is_repeated or life.record is None:
            return
        if life.path in self.forged:
            return
        if done_key(of.flow_id, of.node, queue) not in self._world.objects:
            self._broken("P8", f"{queue}/{life.path} was deleted before its flow knew its outcome")

    # Handlers

    def started(self, context: Context) -> None:
        """A handler starts: if it is a step's, then all that comes before has an outcome, and nothing has ended it."""
        put_id = context.claim.message.put_id
        of = reference(context.path, put_id) if put_id.startswith(MEMBER) else None
        flow = self.flow(of.flow_id) if of else None
        if of is None or flow is None or not (stage := flow.stage_of(of.node)) or context.path in self.forged:
            return
        self.ran.add((context.queue, context.path))
        what = self.decided(flow.flow_id, stage)
        if what != "continue":
            self._broken("P8", f"step {stage} of {flow.flow_id} runs, and decided is {what or 'nothing'}")
        for node in flow.nodes(stage - 1):
            if not self._records(flow, node):
                self._broken("P8", f"step {stage} of {flow.flow_id} runs, and node {node} has no outcome")
        self._check_results(context, flow, stage)

    def _check_results(self, context: Context, flow: FlowDocument, stage: int) -> None:
        """What the handler is given is what was recorded. This sends the requests that a handler would."""
        assert context.flow is not None
        results = context.flow.results
        nodes = flow.nodes(stage - 1)
        if len(results) != len(nodes):
            self._broken("P8", f"step {stage} of {flow.flow_id} sees {len(results)} results, not {len(nodes)}")
            return
        for index, node in enumerate(nodes):
            found, member = results[index], flow.node(node)
            known = self._records(flow, node)
            recorded = [(one.outcome, one.result) for one in known if hasattr(one, "outcome")]
            if isinstance(member, Send) and recorded and (found.outcome, found.result) not in recorded:
                self._broken("P8", f"step {stage} of {flow.flow_id} sees {found} of node {node}")

    # The end

    def check_quiet(self) -> None:
        """Every flow has come to its end, and every step that was decided on has an outcome."""
        self.started_flows.check_quiet()
        for flow in self.flows():
            decisions = [self.decided(flow.flow_id, step) for step in range(1, flow.last + 2)]
            ended = [what for what in decisions if what in ("completed", "failed", "cancelled")]
            if len(ended) != 1:
                self._broken("P8", f"flow {flow.flow_id} has not come to one end: {decisions}")
            for step, what in enumerate(decisions, 1):
                if what == "continue" and not self._records(flow, flow.nodes(step)[0]):
                    self._broken("P8", f"step {step} of {flow.flow_id} was decided on, and has no outcome")
            for node in flow.nodes(0):
                if flow.done(node) not in self._world.objects and not {"failed", "cancelled"} & {*decisions}:
                    self._broken("P8", f"flow {flow.flow_id} has ended without node {node}")
            for node in range(len(flow.members) + len(flow.steps)):
                self._check_once(flow, node)
            if flow.marker in self._world.objects:
                self._broken("P6", f"{flow.marker} is still there")

    def _check_once(self, flow: FlowDocument, node: int) -> None:
        member = flow.node(node)
        if isinstance(member, Send) and flow.path(node) not in self.forged:
            lives = self.ledgers[member.queue].lives.get(flow.path(node), ())
            recorded = [life for life in lives if life.record]
            bodies = {json.loads(life.body)["id"] for life in lives}
            if len(recorded) > 1 or len(bodies) > 1:
                self._broken("P8", f"{flow.path(node)} has {len(recorded)} outcomes, and bodies {sorted(bodies)}")


def _fails(flow: FlowDocument, node: int, outcome: str) -> bool:
    """As it was asked for; not as the code on trial has it."""
    is_last_step = node >= len(flow.members) and node == len(flow.members) + len(flow.steps) - 1
    return outcome != "completed" and (flow.on_dead == "fail" or is_last_step)
