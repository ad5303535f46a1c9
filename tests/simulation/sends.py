"""What handlers send, held against [P7]: it exists if and only if the completion does, and runs once.

A handler's script says how many messages it sends. Each of them names the run that sent it, so that two completions of
one message never send the same bytes, and the judge knows whose sends were recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from s3queue.documents import sends
from s3queue.documents.record import Record
from s3queue.documents.sends import Send, is_repeatable
from s3queue.protocol.claim import Claim
from s3queue.worker.context import Context

from .ledger import Ledger, Life

if TYPE_CHECKING:
    from .world import World

#: Sends of more bytes than one of these scripts has are staged: a second one is.
FEW_BYTES = 600


def send(context: Context, script: dict[str, Any], claim: Claim | None = None) -> None:
    """Send what the script asks for; `claim`: of the message that sends it, if the call is for several."""
    claim = claim or context.claim
    generation = claim.message.generation
    run = [claim.path, generation.put_at.isoformat(), context.worker_id, claim.attempt, context.line]
    plan = script.get("sent_plan", "k")
    for number in range(script.get("sends", 0)):
        body = {"id": f"{script['id']}>{number}", "takes": 0.1, "plan": plan, "of": [*run, number]}
        context.send(context.queue, json.dumps(body).encode(), delay=script.get("sent_delay"))


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
        #: Body → the completion that sent it.
        self._recorded: dict[bytes, Life] = {}
        #: Body → the paths that it was stored under.
        self._stored: dict[bytes, set[str]] = {}
        #: The staged parts that records name.
        self._parts: set[str] = set()

    def recorded(self, life: Life, record: Record) -> None:
        """An outcome was written: from now on its sends are due, and nobody else's."""
        bodies = [send.body for send in record.sends]
        for name in record.outbox:
            key = f"{self._root}outbox/{name}"
            found = self._world.objects.get(key)
            if found is None:
                self._broken("P7", f"{life.path} is recorded, and {key} with what it sent is not there")
                return
            self._parts.add(key)
            bodies += [Send.from_json(send).body for send in json.loads(found.body)["sends"]]
        for body in bodies:
            self._recorded[body] = life
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

    def staged(self, key: str, after: Any) -> None:
        """A part was deleted: all of it is stored. Should a PUT of it land late, its retention removes it."""
        if after is None:
            self._parts.discard(key)

    def put(self, life: Life, stored: Any) -> bool:
        """A message was PUT; whether it was sent. Then its sender has completed, and it is stored under one name."""
        if not is_repeatable(life.path, stored.metadata):
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
