"""What handlers send, held against [P7]: it exists if and only if the completion does, and runs once.

A handler's script says how many messages it sends, and into which groups. Each of them names the run that sent it, so
that two completions of one message never send the same bytes, and the judge knows whose sends were recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from s3queue.documents import sends
from s3queue.documents.record import Record
from s3queue.documents.sends import SENT_ONCE, STARTS, Send, is_repeatable
from s3queue.encoding import put_id_of
from s3queue.paths import group_of, is_ordered, partition_of, partition_path
from s3queue.protocol.claim import Claim
from s3queue.worker.context import Context
from s3queue.worker.definition import Definition

from .ledger import Ledger, Life

if TYPE_CHECKING:
    from .world import World

#: Sends of more bytes than one of these scripts has are staged: a second one is.
FEW_BYTES = 600


#: In the place of a group: into one of the queue's partitions, if it has some.
SHARED = "="


def send(context: Context, script: dict[str, Any], definition: Definition, claim: Claim | None = None) -> None:
    """Send what the script asks for; `claim`: of the message that sends it, if the call is for several.

    `sent_to` names a group for each send, and `sent_more` is what their scripts say besides: they may send, too.
    """
    claim = claim or context.claim
    generation = claim.message.generation
    run = [claim.path, generation.put_at.isoformat(), context.worker_id, claim.attempt, context.line]
    plan, places = script.get("sent_plan", "k"), script.get("sent_to", [None])
    for number in range(script.get("sends", 0)):
        body = {"id": f"{script['id']}>{number}", "takes": 0.1, "plan": plan, "of": [*run, number]}
        encoded = json.dumps(body | script.get("sent_more", {})).encode()
        place = places[number % len(places)]
        if place == SHARED:
            context.send(definition, encoded)
        elif place is not None:
            context.send(context.queue, encoded, group=place)
        else:
            context.send(context.queue, encoded, delay=script.get("sent_delay"))


@contextmanager
def small_records() -> Iterator[None]:
    """Records and leases keep no more than one send."""
    kept, sends.INLINE_SENDS = sends.INLINE_SENDS, FEW_BYTES
    try:
        yield
    finally:
        sends.INLINE_SENDS = kept


class SentMessages:
    """Watches the sends of one queue, which go to the same queue."""

    def __init__(self, world: World, root: str, ledger: Ledger, broken: Callable[[str, str], None]) -> None:
        self._world = world
        self._root = root
        self._ledger = ledger
        self._broken = broken
        #: Body → the completion that sent it; sender → what it sent, in this order: group (or none), line, body.
        self._recorded: dict[bytes, Life] = {}
        self._sent: dict[Life, list[tuple[str, int, bytes]]] = {}
        #: Body → the paths that it was stored under.
        self._stored: dict[bytes, set[str]] = {}
        #: The staged parts that records name.
        self._parts: set[str] = set()

    def recorded(self, life: Life, record: Record) -> list[Send]:
        """An outcome was written: from now on its sends are due, nobody else's. Returns the flows that it starts."""
        found_sends = list(record.sends)
        for name in record.outbox:
            key = f"{self._root}outbox/{name}"
            found = self._world.objects.get(key)
            if found is None:
                self._broken("P7", f"{life.path} is recorded, and {key} with what it sent is not there")
                return []
            self._parts.add(key)
            found_sends += [Send.from_json(send) for send in json.loads(found.body)["sends"]]
        starts = [send for send in found_sends if send.place == STARTS]
        messages = [send for send in found_sends if send.place != STARTS]
        bodies = [send.body for send in messages]
        for body in bodies:
            self._recorded[body] = life
        self._sent[life] = [(group_of(send.place), json.loads(send.body)["of"][4], send.body) for send in messages]
        sent: dict[int, int] = {}
        for body in bodies:
            line = json.loads(body)["of"][4]
            sent[line] = sent.get(line, 0) + 1
        dead = {entry[0] for entry in (record.lines or {}).get("dead_lines", ())}
        for line, asked in life.lines.items():
            count = json.loads(asked).get("sends", 0)
            is_silent = any(run.is_silent for run in life.runs.get(line, ()))
            is_done = record.outcome == "completed" and line not in dead and not is_silent
            if sent.get(line, 0) not in ((count,) if is_done else (0, count)) or (line in dead and line in sent):
                self._broken("P7", f"{life.path} line {line} has sent {sent.get(line, 0)} messages, not {count}")
        return starts

    def staged(self, key: str, after: Any) -> None:
        """A part was deleted: all of it is stored. Should a PUT of it land late, its retention removes it."""
        if after is None:
            self._parts.discard(key)

    def put(self, life: Life, stored: Any) -> bool:
        """A message was PUT; whether it was sent. Then its sender has completed, and it is stored under one name."""
        if not is_repeatable(life.path, stored.metadata) and not put_id_of(stored.metadata).startswith(SENT_ONCE):
            return False
        former = [one for one in self._ledger.lives[life.path] if one is not life and one.record]
        life.is_repeated = bool(former) or (life.puts > 1 and life.record is not None)
        for body in life.lines.values():
            paths = self._stored.setdefault(body, set())
            paths.add(life.path)
            if body not in self._recorded:
                self._broken("P7", f"{life.path} was sent, and no recorded completion has sent it")
            elif len(paths) > 1:
                self._broken("P7", f"{life.path} was sent twice: {', '.join(sorted(paths))}")
        return True

    def before(self, life: Life) -> list[Life | str]:
        """[P9] What must come before this message of a group, which was sent: what its sender sent there earlier, and
        what those sent there that came before its sender in a group of their own. Its body, if it is nowhere.
        """
        sender, group = self._recorded.get(life.body), group_of(life.path)
        if sender is None or group not in (place for place, _, _ in self._sent.get(sender, ())):
            return []
        lines = {body: line for _, line, body in self._sent[sender]}
        earlier: list[bytes] = []
        for place, line, body in self._sent[sender]:
            if body == life.body:
                break
            if place == group and line == lines[life.body]:
                earlier.append(body)
        for other, sent in self._sent.items():
            if _is_earlier(other, sender):
                earlier += [body for place, _, body in sent if place == group]
        return [self._life_of(body) or body.decode() for body in earlier]

    def _life_of(self, body: bytes) -> Life | None:
        lives = [life for path in self._stored.get(body, ()) for life in self._ledger.lives.get(path, ())]
        return next((life for life in lives if life.record or life.end), lives[-1] if lives else None)

    def deleted(self, life: Life) -> None:
        """A completed message goes only after what it sent is stored: nobody would look for it afterwards."""
        for body, sender in self._recorded.items():
            if sender is life and body not in self._stored:
                self._broken("P7", f"{life.path} was deleted before {body!r} was stored")

    def check_quiet(self) -> None:
        for body, sender in self._recorded.items():
            if body not in self._stored:
                self._broken("P7", f"{sender.path} has completed, and {body!r} was never stored")
        for key in self._parts:
            if key in self._world.objects:
                self._broken("P6", f"{key} is still there, and all of it is stored")


#: The names of sends keep so much of their sender's.
ORDERED_BYTES = 240


def _is_earlier(other: Life, sender: Life) -> bool:
    """Whether it comes before the sender in the same group, and came to its end before it."""
    partition = partition_of(sender.path)
    if not partition or not is_ordered(partition) or partition_of(other.path) != partition:
        return False
    if max(len(one.path.removeprefix(partition_path(partition)).encode()) for one in (other, sender)) > ORDERED_BYTES:
        return False  # names are cut there, as PROTOCOL.md says: after six replays behind each other, or so
    return other.path.encode() < sender.path.encode() and other.recorded_at <= sender.recorded_at
