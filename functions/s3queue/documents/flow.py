"""Flow: messages that belong together, and what comes after them. What lies under `flows/`.  [P8]

A flow has members, and steps behind them, one after the other. Members and steps are its *nodes*, numbered from 0. The
put id of a node's message says which node it is, and its record keeps that: so whoever finishes the message knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from s3queue.encoding import (
    METADATA_BYTES,
    NONSENSE,
    PUT_ID,
    as_list,
    as_object,
    as_text,
    as_whole,
    cut,
    dump,
    has_too_many_parts,
    load_current,
    metadata_size,
    with_put_id,
)
from s3queue.errors import CorruptState, InvalidName, InvalidRequest
from s3queue.keys import Keys
from s3queue.paths import name_of, partition_of
from s3queue.store import Object
from s3queue.tracing import forwarded, traced

from .message import MEMBER
from .record import Outcome
from .sends import STARTS, Send
from .sent_objects import SentObject

OnDead = Literal["continue", "fail"]
#: All flows of a bucket: no queue has this name.
FLOWS = "flows/"
#: One LIST shows the outcomes of all of them.
MOST_MEMBERS = 1000
MOST_STEPS = 100
#: A flow's document, with the bodies of all its messages.
FLOW_BYTES = 16 * 1024 * 1024
#: So many other members are looked for before all are counted.
PROBES = 4
#: Stands for the queue of a member that is a flow itself; no queue has this name.
NESTED = "~"
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_ANY_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}(\.[0-9]{4})?")
_DONE = re.compile(r"([0-9]{4})\.([a-z0-9_-]{1,63}|~)")
_REFERENCE = re.compile(rf"{MEMBER}({_ANY_ID.pattern})/([0-9]{{4}})/([0-9]{{1,4}})/([^/]*)")
_NAME = re.compile(rf"flow-({_ANY_ID.pattern})-([0-9]{{4}})")
#: What the reference to a node takes of a message's metadata, at most: the id, two numbers, the probes and their names.
_REFERENCE_BYTES = 480


def check_id(flow_id: str) -> str:
    """The id itself.

    Raises:
        InvalidName: no flow can have it.
    """
    if not isinstance(flow_id, str) or not _ID.fullmatch(flow_id):
        raise InvalidName(
            f"flow id {str(flow_id)[:80]!r} is not valid: use 1 to 63 lower-case letters, digits and '-', and start "
            "with a letter or a digit"
        )
    return flow_id


def is_id(flow_id: str) -> bool:
    """Whether a flow, or one within another, can have this id."""
    return _ANY_ID.fullmatch(flow_id) is not None


def flow_key(flow_id: str) -> str:
    return f"{FLOWS}{flow_id}/flow.json"


def started_key(flow_id: str) -> str:
    """Exists once all members were stored."""
    return f"{FLOWS}{flow_id}/started"


def decision_key(flow_id: str, step: int) -> str:
    """What was decided about the step: 1 is the first behind the members."""
    return f"{FLOWS}{flow_id}/decided/{step:04d}"


def done_prefix(flow_id: str) -> str:
    return f"{FLOWS}{flow_id}/done/"


def done_key(flow_id: str, node: int, queue: str) -> str:
    """The queue is part of the name: a message of another queue that claims to be this node counts for nothing."""
    return f"{done_prefix(flow_id)}{node:04d}.{queue}"


class Reference(NamedTuple):
    """Which node of which flow a message is."""

    flow_id: str
    node: int
    #: How many nodes are side by side with it, itself included.
    beside: int
    #: The ends of the keys of some of these.
    probes: tuple[str, ...]

    def put_id(self) -> str:
        return f"{MEMBER}{self.flow_id}/{self.node:04d}/{self.beside}/{','.join(self.probes)}"


def reference(path: str, put_id: str) -> Reference | None:
    """What a message's path and put id say; None if they do not fit together: then it is a message like any other."""
    found = _REFERENCE.fullmatch(put_id)
    if found is None:
        return None
    flow_id, node = found[1], int(found[3])
    probes = tuple(filter(None, found[5].split(",")))
    if name_of(path).rpartition("/")[2] != message_name(flow_id, node) or len(probes) > PROBES:
        return None
    if not all(_DONE.fullmatch(probe) for probe in probes):
        return None
    return Reference(flow_id, node, int(found[4]), probes)


def message_name(flow_id: str, node: int) -> str:
    return f"flow-{flow_id}-{node:04d}"


def named_node(path: str) -> tuple[str, int] | None:
    """The flow and the node that a message's name says it is: all that is left to tell of one that is replayed."""
    found = _NAME.fullmatch(name_of(path).rpartition("/")[2])
    return (found[1], int(found[3])) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowDocument:
    """`flows/{id}/flow.json`: written once, before anything of the flow."""

    flow_id: str
    #: The queue that has the flow's marker: its sweeper repairs the flow.
    home: str
    members: tuple[Send | FlowDocument, ...]
    steps: tuple[Send, ...] = ()
    on_dead: OnDead = "fail"
    #: The flow that this one is a member of, and as which node.
    parent: tuple[str, int] | None = None
    #: Its messages carry it, unless they have another one.
    trace: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= len(self.members) <= MOST_MEMBERS or len(self.steps) > MOST_STEPS:
            raise ValueError(f"a flow has 1 to {MOST_MEMBERS} members and at most {MOST_STEPS} steps")
        if self.on_dead not in ("continue", "fail"):
            raise ValueError(f"unknown on_dead {self.on_dead!r}")
        for one in (*self.members, *self.steps):
            if isinstance(one, Send) and (one.place == STARTS or partition_of(one.place)):
                raise ValueError(f"a message of a flow cannot be at {one.place!r}")

    @property
    def last(self) -> int:
        """The last stage: 0 if nothing comes after the members."""
        return len(self.steps)

    @property
    def marker(self) -> str:
        return f"{Keys(self.home).prefix('flows')}{self.flow_id}"

    def stage_of(self, node: int) -> int:
        """0 for a member, else which step it is."""
        return max(0, node - len(self.members) + 1)

    def nodes(self, stage: int) -> range:
        count = len(self.members)
        return range(count) if stage == 0 else range(count + stage - 1, count + stage)

    def node(self, node: int) -> Send | FlowDocument:
        count = len(self.members)
        return self.members[node] if node < count else self.steps[node - count]

    def done(self, node: int) -> str:
        """The key of its outcome."""
        found = self.node(node)
        return done_key(self.flow_id, node, found.queue if isinstance(found, Send) else NESTED)

    def has(self, node: int, queue: str) -> bool:
        """Whether this node is a message of this queue, or a flow for `NESTED`."""
        if node >= len(self.members) + len(self.steps):
            return False
        found = self.node(node)
        return (found.queue if isinstance(found, Send) else NESTED) == queue

    def fails(self, node: int, outcome: Outcome) -> bool:
        """Whether this outcome of a node is the end of the flow: nothing comes after the last step to deal with it."""
        if outcome == "completed":
            return False
        stage = self.stage_of(node)
        return self.on_dead == "fail" or 0 < stage == self.last

    def path(self, node: int) -> str:
        found = self.node(node)
        assert isinstance(found, Send)
        return f"{found.place}{message_name(self.flow_id, node)}"

    def reference(self, node: int) -> Reference:
        beside = self.nodes(self.stage_of(node))
        prefix = done_prefix(self.flow_id)
        probes = tuple(self.done(other).removeprefix(prefix) for other in _probed(node, beside))
        return Reference(self.flow_id, node, len(beside), probes)

    def message(self, node: int) -> SentObject:
        """What is PUT for a node. Its name is its own, so that the PUT may be repeated by anyone."""
        found = self.node(node)
        assert isinstance(found, Send)
        put_id = self.reference(node).put_id()
        return SentObject(
            queue=found.queue,
            path=self.path(node),
            body=found.body,
            content_type=found.content_type,
            metadata=with_put_id(traced(dict(found.metadata), self.trace), put_id),
        )

    def check(self) -> None:
        """Raises InvalidRequest or InvalidName if a message of it cannot be stored: nothing was written yet."""
        for number in range(len(self.members) + len(self.steps)):
            found = self.node(number)
            if isinstance(found, FlowDocument):
                found.check()
                continue
            path = self.path(number)
            if problem := Keys(found.queue).problem(path):
                raise InvalidName(f"{found.queue}/{path}: {problem}")
            if metadata_size(found.metadata) + len(PUT_ID) + _REFERENCE_BYTES > METADATA_BYTES:
                raise InvalidRequest(
                    f"the metadata of a message to {found.queue!r} leaves no room for its flow: at most "
                    f"{METADATA_BYTES - len(PUT_ID) - _REFERENCE_BYTES} bytes"
                )
        size = len(self.to_bytes())
        if size > FLOW_BYTES:
            raise InvalidRequest(
                f"flow {self.flow_id} has {size} bytes, bodies included; at most {FLOW_BYTES}: store large payloads, "
                "and send their keys"
            )

    def is_like(self, other: FlowDocument) -> bool:
        """Whether both ask for the same; when a message is due may differ, since a delay counts from the call."""
        return _asked(self) == _asked(other)

    def to_json(self, *, as_base64: bool = False) -> dict[str, Any]:
        members = [
            one.to_json(as_base64=as_base64) if isinstance(one, Send) else {"flow": one.to_json(as_base64=as_base64)}
            for one in self.members
        ]
        described = {
            "id": self.flow_id,
            "home": self.home,
            "members": members,
            "steps": [step.to_json(as_base64=as_base64) for step in self.steps],
            "on_dead": self.on_dead,
            "parent": list(self.parent) if self.parent else None,
        }
        return described | ({"trace": dict(self.trace)} if self.trace else {})

    def to_bytes(self) -> bytes:
        document = dump(self.to_json())
        # A reader bounds the commas of a document, also those of the bodies in it.
        return dump(self.to_json(as_base64=True)) if has_too_many_parts(document) else document

    @classmethod
    def from_json(cls, found: Any, *, is_nested: bool = False) -> FlowDocument:
        as_object(found)
        flow_id, home = as_text(found["id"]), as_text(found["home"])
        if not is_id(flow_id):
            raise ValueError(f"{flow_id!r} is not the id of a flow")
        Keys(home)
        members: list[Send | FlowDocument] = []
        for one in as_list(found["members"]):
            if "flow" in as_object(one):
                if is_nested:
                    raise ValueError("flows are nested more than once")
                members.append(cls.from_json(one["flow"], is_nested=True))
            else:
                members.append(Send.from_json(one))
        parent = found.get("parent")
        if parent is not None:
            above, node = as_list(parent)
            parent = (check_id(above), as_whole(node, most=MOST_MEMBERS - 1))
        return cls(
            flow_id=flow_id,
            home=home,
            members=tuple(members),
            steps=tuple(Send.from_json(step) for step in as_list(found.get("steps", []))),
            on_dead=found.get("on_dead", "fail"),
            parent=parent,
            trace=forwarded(as_object(found.get("trace", {}))),
        )

    @classmethod
    def read(cls, found: Object, flow_id: str) -> FlowDocument:
        """
        Raises:
            CorruptState: it is not a flow, or another's; NewerFormat: a newer version wrote it.
        """
        flow = cls.from_body(found.read(FLOW_BYTES), found.key)
        if flow.flow_id != flow_id:
            raise CorruptState(f"{found.key} is not a flow: it is flow {flow.flow_id!r}")
        return flow

    @classmethod
    def from_body(cls, body: bytes, key: str) -> FlowDocument:
        """As `read`, of whatever flow; the key is for the error."""
        document = load_current(body, key)
        try:
            return cls.from_json(document)
        except (*NONSENSE, InvalidRequest) as error:
            raise CorruptState(f"{key} is not a flow: {cut(error)}") from None


def _asked(flow: FlowDocument) -> tuple[Any, ...]:
    def asked(one: Send | FlowDocument) -> tuple[Any, ...]:
        if isinstance(one, Send):
            return one.queue, one.body, one.content_type, tuple(sorted(one.metadata.items()))
        return _asked(one)

    return tuple(map(asked, flow.members)), tuple(map(asked, flow.steps)), flow.on_dead


def probes_of_last(members: int) -> int:
    """How many others the last of so many members looks for, before it counts all."""
    return len(_probed(members - 1, range(members)))


def _probed(node: int, beside: Sequence[int]) -> list[int]:
    """The nodes that are looked for when this one is done: whoever is last finds all of them, whichever these are.

    The last one first: most queues run messages in their order. The others are spread, so that no order makes many
    nodes find them all.
    """
    count = len(beside)
    chosen = [beside[-1], *(beside[(node + 1 + round(count * part)) % count] for part in (0.618, 0.236, 0.854, 0.472))]
    return [other for other in dict.fromkeys(chosen) if other != node][:PROBES]
