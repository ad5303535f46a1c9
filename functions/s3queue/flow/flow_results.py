"""What a handler sees of the flow that its message belongs to: `context.flow`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, overload

from s3queue.documents.flow import FlowDocument, flow_key
from s3queue.documents.flow_outcomes import Done
from s3queue.documents.record import Outcome
from s3queue.documents.sends import Send
from s3queue.errors import CorruptState
from s3queue.store import ObjectStore, open_state

#: GETs at a time, when all results are read.
READS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """How one member, or the step before, ended."""

    queue: str
    path: str
    outcome: Outcome
    #: What its handler returned; None if it died, was cancelled, or returned nothing that can be stored.
    result: Any = None
    #: Why it died, or why its result is missing; else empty.
    error: str = ""


class Results(Sequence[MemberResult]):
    """The outcomes of the members, in their order, or of the step before. Each is read when it is asked for: one GET;
    a loop over all reads several at a time.
    """

    def __init__(self, store: ObjectStore, flow: FlowDocument, nodes: Sequence[int]) -> None:
        self._store = store
        self._flow = flow
        self._nodes = nodes
        self._read: dict[int, MemberResult] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    @overload
    def __getitem__(self, index: int) -> MemberResult: ...
    @overload
    def __getitem__(self, index: slice) -> list[MemberResult]: ...
    def __getitem__(self, index: int | slice) -> MemberResult | list[MemberResult]:
        if isinstance(index, slice):
            return [self._get(node) for node in self._nodes[index]]
        return self._get(self._nodes[index])

    def __iter__(self) -> Iterator[MemberResult]:
        missing = [node for node in self._nodes if node not in self._read]
        if len(missing) > READS:
            with ThreadPoolExecutor(READS) as readers:
                list(readers.map(self._get, missing))
        return map(self._get, self._nodes)

    def _get(self, node: int) -> MemberResult:
        if node not in self._read:
            key = self._flow.done(node)
            found = open_state(self._store, key)
            if found is None:
                raise CorruptState(f"{key} is missing: someone deleted an outcome of flow {self._flow.flow_id}")
            done, member = Done.read(found), self._flow.node(node)
            self._read[node] = MemberResult(
                queue=done.queue or (member.queue if isinstance(member, Send) else ""),
                path=done.path,
                outcome=done.outcome,
                result=done.result,
                error=f"{done.failure.type}: {done.failure.message}" if done.failure else done.result_error,
            )
        return self._read[node]


@dataclass(slots=True)
class FlowContext:
    """The flow of a message, and which part of it the message is. Nothing is read before it is asked for."""

    _store: ObjectStore
    #: The queue of the message.
    _queue: str
    #: The flow's id, and which of its nodes the message's name says it is.
    _of: tuple[str, int]
    _results: Results | None = field(default=None, repr=False)

    @property
    def id(self) -> str:
        return self._of[0]

    @property
    def number(self) -> int:
        """Which message of the flow: members are counted from 0, the steps after them."""
        return self._of[1]

    @property
    def results(self) -> Results:
        """The outcomes that came before this step: of all members, or of the one step before. Empty for a member.

        Raises:
            CorruptState: the flow's document, or an outcome, is gone or cannot be read.
        """
        if self._results is None:
            key = flow_key(self.id)
            found = open_state(self._store, key)
            if found is None:
                raise CorruptState(f"{key} is missing: someone deleted flow {self.id}")
            flow = FlowDocument.read(found, self.id)
            # Whoever may write into one queue must not have its handler read what is for another.
            if not flow.has(self.number, self._queue):
                raise CorruptState(
                    f"{key} has no message {self.number} in {self._queue!r}: s3queue did not write this one"
                )
            stage = flow.stage_of(self.number)
            self._results = Results(self._store, flow, flow.nodes(stage - 1) if stage else ())
        return self._results
