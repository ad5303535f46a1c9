"""Flows: for whoever looks at the flows of a bucket, or cancels one.  [P8]"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from s3queue.clock import Chance, Clock, RandomChance, SystemClock
from s3queue.documents.flow import FlowDocument, OnDead, flow_key, is_id
from s3queue.documents.flow_outcomes import Decided, Decision, Done
from s3queue.documents.record import Outcome
from s3queue.documents.sends import Send
from s3queue.encoding import format_instant
from s3queue.errors import CorruptState, MessageNotFound, QueueError
from s3queue.protocol.access import QueueAccess
from s3queue.protocol.flow_storing import Found, look
from s3queue.settings import QueueSettings
from s3queue.store import ObjectStore, open_state

from .flow_names import flow_names
from .flow_repair import cancel_flow
from .flow_results import READS

State = Literal["running", "completed", "failed", "cancelled", "unknown"]
#: A list of flows looks at so many names more than it returns.
MOST_LEFT_OUT = 1000


def access(store: ObjectStore, home: str, clock: Clock, chance: Chance) -> QueueAccess:
    """For who looks at flows, or cancels one: whatever these credentials allow."""
    return QueueAccess(store=store, name=home, clock=clock, chance=chance, worker_id=f"flows-{chance.token()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One message of a flow, or a flow within it."""

    number: int
    #: 0: a member; else which step.
    stage: int
    queue: str
    path: str
    #: Waiting: it has no outcome yet, or its turn has not come.
    state: Outcome | Literal["waiting"]
    #: The id of the flow within, if it is one.
    flow_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowState:
    """A flow, and how far it has come."""

    id: str
    #: `unknown`: it cannot be read, and `problem` says why.
    state: State
    on_dead: OnDead
    members: int
    #: How many members have an outcome, whichever.
    done: int
    steps: int
    #: How many steps were decided on, and which is at work: 0, the members are.
    stage: int
    started_at: datetime | None
    ended_at: datetime | None = None
    reason: str = ""
    nodes: tuple[NodeState, ...] = field(default=(), repr=False)
    problem: str = ""

    @classmethod
    def unreadable(cls, flow_id: str, error: QueueError) -> FlowState:
        """In the place of one that cannot be read: the others are shown all the same."""
        return cls(
            id=flow_id,
            state="unknown",
            on_dead="fail",
            members=0,
            done=0,
            steps=0,
            stage=0,
            started_at=None,
            problem=f"{type(error).__name__}: {error}",
        )


@dataclass(slots=True)
class Flows:
    """The flows of a bucket."""

    store: ObjectStore
    clock: Clock = field(default_factory=SystemClock)
    chance: Chance = field(default_factory=RandomChance)
    #: Of whoever cancels: for how long a message is its own while it does.
    settings: QueueSettings = field(default_factory=QueueSettings)

    def ids(self) -> list[str]:
        """Of all flows but those within others, by name, which begins with the time unless the caller chose it; the
        last one first. One LIST for 1,000 flows; of more than 20,000, flows within others included, the last 1,000.
        """
        return flow_names(self.store)

    def list(self, limit: int = 50) -> list[FlowState]:
        """The last ones by name; the newest first. One LIST for 1,000 flows, and three requests for each that is
        returned. One that cannot be read is shown as `unknown`, with the reason.
        """
        found: list[FlowState] = []
        for flow_id in self.ids()[: limit + MOST_LEFT_OUT]:
            if len(found) == limit:
                break
            try:
                found.append(self.state(flow_id))
            except MessageNotFound:
                continue  # what is left of one whose document is gone, or a stranger's
            except CorruptState as error:
                found.append(FlowState.unreadable(flow_id, error))
        return found

    def state(self, flow_id: str) -> FlowState:
        """One flow without its nodes. Three requests.

        Raises:
            MessageNotFound: no flow has this id. CorruptState: its document cannot be read.
        """
        return self._state(flow_id)

    def show(self, flow_id: str, *, outcomes: bool = True) -> FlowState:
        """One flow with its nodes. With `outcomes`, one GET for each that has one, several at a time.

        Raises:
            MessageNotFound: no flow has this id. CorruptState: its document cannot be read.
        """
        return self._state(flow_id, nodes=True, outcomes=outcomes)

    def cancel(self, flow_id: str, reason: str = "", *, seconds: float | None = None) -> FlowState:
        """End a flow: no further step comes, and what waits or is at work is cancelled. Safe to repeat; a flow that has
        ended stays as it is.

        With `seconds`, messages that could not be cancelled in this time are left to the sweeper of the flow's home.
        The flow is cancelled all the same.

        Raises:
            MessageNotFound: no flow has this id.
            Unavailable: unknown how far it came; calling again is safe.
        """
        queue, flow, _ = self._read(flow_id)
        until = None if seconds is None else self.clock.monotonic() + seconds
        is_late = (lambda: False) if until is None else (lambda: self.clock.monotonic() >= until)
        cancel_flow(queue, flow, reason or "cancelled by an operator", is_late)
        return self._state(flow_id)

    def _read(self, flow_id: str) -> tuple[QueueAccess, FlowDocument, datetime]:
        if not is_id(flow_id) or (found := open_state(self.store, flow_key(flow_id))) is None:
            raise MessageNotFound(f"no flow has the id {flow_id!r}: see `s3queue flows list`")
        flow = FlowDocument.read(found, flow_id)
        queue = access(self.store, flow.home, self.clock, self.chance)
        queue.settings = self.settings
        return queue, flow, found.modified_at

    def _state(self, flow_id: str, *, nodes: bool = False, outcomes: bool = False) -> FlowState:
        queue, flow, started_at = self._read(flow_id)
        found = look(queue, flow)
        decision: Decision | None = found.decision if found.is_over else None
        return FlowState(
            id=flow_id,
            state=_state(decision.decided) if decision else "running",
            on_dead=flow.on_dead,
            members=len(flow.members),
            done=sum(flow.done(node) in found.done for node in flow.nodes(0)),
            steps=len(flow.steps),
            stage=found.stage,
            started_at=started_at,
            ended_at=decision.at if decision else None,
            reason=decision.reason if decision else "",
            nodes=tuple(self._nodes(flow, found, outcomes)) if nodes else (),
        )

    def _nodes(self, flow: FlowDocument, found: Found, outcomes: bool) -> Iterator[NodeState]:
        read = dict(zip(keys := sorted(found.done), self._outcomes(keys), strict=True)) if outcomes else {}
        for number in range(len(flow.members) + len(flow.steps)):
            node, key = flow.node(number), flow.done(number)
            ended: Outcome | Literal["waiting"] = "waiting"
            if key in found.done:
                ended = read.get(key, "completed")
            is_message = isinstance(node, Send)
            yield NodeState(
                number=number,
                stage=flow.stage_of(number),
                queue=node.queue if isinstance(node, Send) else "",
                path=flow.path(number) if is_message else "",
                state=ended,
                flow_id=node.flow_id if isinstance(node, FlowDocument) else "",
            )

    def _outcomes(self, keys: Sequence[str]) -> Sequence[Outcome]:
        def read(key: str) -> Outcome:
            stored = open_state(self.store, key)
            return Done.read(stored).outcome if stored else "completed"

        if len(keys) <= READS:
            return [read(key) for key in keys]
        with ThreadPoolExecutor(READS) as readers:
            return [*readers.map(read, keys)]


def flow_document(found: FlowState) -> dict[str, Any]:
    """A flow without its nodes, as CLI and API show it."""
    return {
        "id": found.id,
        "state": found.state,
        "on_dead": found.on_dead,
        "members": found.members,
        "done": found.done,
        "steps": found.steps,
        "stage": found.stage,
        "started_at": format_instant(found.started_at) if found.started_at else None,
        "ended_at": format_instant(found.ended_at) if found.ended_at else None,
        "reason": found.reason,
        "problem": found.problem,
    }


def _state(decided: Decided) -> State:
    return "running" if decided == "continue" else decided
