"""Flows that handlers start: one exists if and only if the completion of its starter does, as that says.  [P7] [P8]

A handler's script says which members and steps its flow has. Each names the run that started it, so that the judge
knows whose flow was stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from s3queue.documents.flow import FlowDocument, flow_key, started_key
from s3queue.documents.record import Record
from s3queue.documents.sends import Send
from s3queue.flow.flows import Flow
from s3queue.worker.context import Context

from .ledger import Life

if TYPE_CHECKING:
    from .world import World

#: What the ids of flows begin with that nobody's handler has started.
BY_HAND = "f"


def start(context: Context, script: dict[str, Any], world: World) -> None:
    """Start the flow that the script asks for."""
    if asked := script.get("starts"):
        run = [context.worker_id, context.attempt, world.now]
        context.start(_flow(context, asked, run, world))


def _flow(context: Context, asked: dict[str, Any], run: list[Any], world: World) -> Flow:
    assert context.store is not None
    flow = Flow(context.store, on_dead=asked.get("on_dead", "fail"), clock=context.claim.clock, chance=world.chance)
    for member in asked["members"]:
        if isinstance(member, dict):
            flow.add(_flow(context, member, run, world))
        else:
            flow.add(member[0], json.dumps(member[1] | {"of_run": run}).encode())
    for queue, body in asked["steps"]:
        flow.then(queue, json.dumps(body | {"of_run": run}).encode())
    return flow


class StartedFlows:
    """Watches which flows were asked for by completions, and which were stored."""

    def __init__(self, world: World, broken: Callable[[str, str], None]) -> None:
        self._world = world
        self._broken = broken
        #: Flow → the message whose completion has started it, and the flow as the record has it.
        self._asked: dict[str, tuple[Life, FlowDocument]] = {}

    def recorded(self, life: Life, record: Record, starts: Sequence[Send]) -> None:
        """An outcome was written: from now on its flows are due, and nobody else's."""
        for send in starts:
            flow = FlowDocument.from_body(send.body, life.path)
            self._asked[flow.flow_id] = life, flow
        dead = {entry[0] for entry in (record.lines or {}).get("dead_lines", ())}
        wanted = sum("starts" in json.loads(body) for line, body in life.lines.items() if line not in dead)
        # Of a batch that died as a whole, lines that were done before have started theirs.
        allowed = {wanted} if record.outcome == "completed" else set(range(wanted + 1))
        if len(starts) not in allowed:
            self._broken("P7", f"{life.path} is {record.outcome}, and has started {len(starts)} flows, not {wanted}")

    def stored(self, flow: FlowDocument) -> None:
        """A flow was stored: someone started it by hand, or the completion of a message has."""
        top = flow.parent[0] if flow.parent else flow.flow_id
        if top.startswith(BY_HAND):
            return
        if top not in self._asked:
            self._broken("P7", f"flow {flow.flow_id} was stored, and no recorded completion has started it")
        elif not flow.parent and flow != self._asked[top][1]:
            self._broken("P7", f"flow {flow.flow_id} is not the one that was recorded")

    def deleted(self, life: Life, is_decided: Callable[[str], bool]) -> None:
        """A completed message goes only after its flow is stored, with all members, or cancelled: nobody else knows
        of it.
        """
        for flow_id, (starter, _) in self._asked.items():
            is_there = flow_key(flow_id) in self._world.objects
            is_whole = is_there and (started_key(flow_id) in self._world.objects or is_decided(flow_id))
            if starter is life and not is_whole:
                self._broken("P7", f"{life.path} was deleted before its flow {flow_id} was stored")

    def check_quiet(self) -> None:
        for flow_id, (starter, _) in self._asked.items():
            if flow_key(flow_id) not in self._world.objects:
                self._broken("P7", f"{starter.path} has completed, and its flow {flow_id} was never stored")
