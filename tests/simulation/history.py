"""The history, as Jepsen judges one: every call of a producer or an operator, and what it was told, against what
happened in the bucket.

A call is `ok`, `failed` (nothing was done), `unknown` (the answer was lost), or still `invoked` when its process died.
What was acknowledged is there; what is unknown may be there, but not more often than it was asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from s3queue.documents.message import MOVED, ONCE
from s3queue.documents.record import Record
from s3queue.encoding import parse_json, put_id_of
from s3queue.errors import QueueError, Unavailable
from s3queue.paths import runs_once

from .ledger import Ledger, Life
from .letters import Letters, bodies_of
from .machines import EPOCH, Process
from .world import World

#: Equal bytes under one name within S3's grain of time are one message: nobody can tell which PUT wrote them.
GRAIN_SECONDS = 3.0
#: To look and to write are two requests: what happens in between was not seen.
LOOKED_WITHIN = 1.0
#: Whoever works for the queue asks for nothing.
_SERVANTS = ("function", "pull", "sweeper", "subject", "helper", "driver")


@dataclass(slots=True, eq=False)
class Call:
    """One call: what was asked, what was answered, and which messages it PUT."""

    process: Process
    name: str
    asked: Mapping[str, Any]
    invoked_at: float
    state: str = "invoked"
    answered_at: float = float("inf")
    answer: Any = None
    #: Key → how often this call wrote it, without the requests that landed late.
    puts: Counter[str] = field(default_factory=Counter)
    lives: list[Life] = field(default_factory=list)


class History:
    """The calls of one queue's producers and operators."""

    def __init__(
        self, world: World, root: str, ledger: Ledger, letters: Letters, broken: Callable[[str, str], None]
    ) -> None:
        self._world = world
        self._root = root
        self._ledger = ledger
        self._letters = letters
        self._broken = broken
        self.calls: dict[Process, list[Call]] = {}
        #: Messages that were replayed; what their handlers lacked may be there by now.
        self.replayed: set[bytes] = set()
        #: Whether completed messages are recorded; if not, only what is there, or may be PUT again, can be looked up.
        self.keeps_records = True
        #: Messages that an operator deleted by hand, also if equal bytes were PUT there since.
        self.removed: set[str] = set()
        #: Messages that were deleted by the worker that ran them, and those of which a canceller was told that nobody
        #: worked on them.
        self.finished: set[Life] = set()
        self.withdrawn: set[Life] = set()
        #: When the queue was paused for certain; None while it is not.
        self.paused_at: float | None = None

    @contextmanager
    def call(self, process: Process, name: str, /, **asked: Any) -> Iterator[Call]:
        """Note a call, and judge its answer when it has one."""
        call = Call(process, name, asked, self._world.now)
        self.calls.setdefault(process, []).append(call)
        if "paused" in asked:
            self.paused_at = None
        try:
            yield call
        except Unavailable:
            self._answered(call, "unknown")
            raise
        except QueueError:
            self._answered(call, "failed")
            raise
        self._answered(call, "ok")

    def _answered(self, call: Call, state: str) -> None:
        call.state, call.answered_at = state, self._world.now
        self._world.note(call.process, call.name, str(call.asked.get("path", "")), state)
        if state == "failed" and call.name.startswith("enqueue") and call.puts:
            self._broken("unexpected", f"{call.name} failed, and wrote {sorted(call.puts)}")
        if state == "ok":
            _JUDGES[call.name](self, call)

    # What the store saw

    def put(self, process: Process, key: str, sent_at: float, before: Any, after: Any, life: Life | None) -> None:
        """A message or `queue.json` was written; someone must have asked for it, and for no more of it."""
        call = self.asked(process, sent_at)
        if call is None:
            if process.name.startswith(_SERVANTS) and not (life and runs_once(life.path)):
                self._broken("unexpected", f"{process.name} wrote {key}, and nobody had asked for it")
            return
        if life:
            call.lives.append(life)
            # What could not be read is replayed in its place, with the same bytes.
            if call.name in ("replay", "rerun") and before and before.body != after.body:
                self._broken("P1", f"a replay of {life.path} overwrote what was PUT there")
            if call.name in ("rerun", "edit"):
                self.replayed.update(life.lines.values())
            if call.name == "replay":
                self.replayed.update(life.lines.values())
                self._check_repeated(call, life)
                self._check_chosen(call, life)
                if call.asked.get("error_type"):
                    self._letters.chosen(call.asked["path"], life)
        if not self._world.is_landing:
            call.puts[key] += 1
            if call.puts[key] > 1 and life and self._has_arrived(process, life.path, sent_at, before, after):
                self._broken("P5", f"{key} was asked for once, and written {call.puts[key]} times by one {call.name}")

    def _has_arrived(self, process: Process, path: str, sent_at: float, before: Any, after: Any) -> bool:
        """Whether a call that looked could have seen that its first PUT had arrived. If equal bytes were at work, they
        were taken for one message, and it could not; nor if it looked, stood still, and then sent what does not run.
        """
        put_id = put_id_of(after.metadata)
        if path in self.removed:
            return False  # an operator deleted it before its producer could look
        if not put_id:
            # Nobody else uses a name that is the library's own.
            return self.keeps_records or before is not None
        lives = self._ledger.lives.get(path, ())
        recorded = [(one.recorded_at, one.record.put_id) for one in lives if one.record and self.keeps(one.record)]
        # There is one record for all generations of a name: the last one's.
        at, last = max(recorded, default=(0.0, ""))
        has_stood_still = (
            put_id.startswith((ONCE, MOVED))
            and process.slept_at - LOOKED_WITHIN <= at < process.woke_at
            and sent_at - process.woke_at < LOOKED_WITHIN
        )
        is_recorded = last == put_id and at < sent_at - LOOKED_WITHIN and not has_stood_still
        return is_recorded or (before is not None and put_id_of(before.metadata) == put_id)

    def keeps(self, record: Record) -> bool:
        """Whether an outcome has to stay. Without a history, that of a completed message need not, unless its PUT may
        be repeated: a partition's lease says it, and is given up.
        """
        return self.keeps_records or record.outcome != "completed" or record.put_id.startswith((ONCE, MOVED))

    def asked(self, process: Process, sent_at: float) -> Call | None:
        """The call in which this request was sent; its answer may have come, or been given up, since."""
        for call in reversed(self.calls.get(process, ())):
            if call.invoked_at <= sent_at:
                return call if call.answered_at >= sent_at else None
        return None

    # Acknowledged calls

    def _check_enqueue(self, call: Call) -> None:
        """[P1] What was acknowledged was stored: these bytes, or, with a dedup id, a message of that name."""
        found = self._ledger.lives.get(call.answer, ())
        is_any = call.asked.get("dedup_id") is not None
        # An id that counts for a while may stand for a message that was finished long ago.
        since = float("-inf") if "dedup_for" in call.asked else call.invoked_at - GRAIN_SECONDS
        if not any((is_any or one.body == call.asked["body"]) and _was_there(one, since) for one in found):
            self._broken("P1", f"{call.answer} was acknowledged, and never stored")
        elif not is_any and not call.lives:
            self._broken("P1", f"{call.answer} was acknowledged, and only an equal one had been stored before")

    def _check_enqueue_many(self, call: Call) -> None:
        stored = [one.body for path in call.answer for one in self._ledger.lives.get(path, ())[:1]]
        wanted = b"".join(body + b"\n" for body in call.asked["bodies"])
        if b"".join(stored) != wanted:
            self._broken("P1", f"{call.answer} were acknowledged, and are not what was asked for")

    def _check_replay(self, call: Call) -> None:
        if call.answer not in self._ledger.lives:
            self._broken("P1", f"{call.asked['path']} was replayed as {call.answer}, which never was")
        self._check_left(call, call.asked["path"])

    def _check_rerun(self, call: Call) -> None:
        """[P1] A completed message whose replay was acknowledged lies there, or has run."""
        # A delayed message is replayed under another name.
        before = 1 if call.answer == call.asked["path"] else 0
        if len(self._ledger.lives.get(call.answer, ())) <= before:
            self._broken("P1", f"{call.asked['path']} was replayed as {call.answer}, which was never stored")

    def _check_left(self, call: Call, path: str) -> None:
        """[P5] The lines of a batch that were replayed are no longer in its letter, unless they died again."""
        letter = self._world.objects.get(f"{self._root}dead/{path}")
        is_same = self._letters.deleted_at.get(path, 0.0) < call.invoked_at
        replayed = {line for life in call.lives for line in life.lines.values()}
        if letter and is_same and call.asked.get("error_type") and replayed & bodies_of(letter.body):
            self._broken("P5", f"lines of {path} were replayed, and are still in their letter")

    def _check_chosen(self, call: Call, life: Life) -> None:
        """Only what died of the error that was asked for is replayed: a whole letter, or those lines of a batch."""
        path, wanted = call.asked["path"], call.asked.get("error_type")
        chosen = self._letters.died_of(path, wanted, call.invoked_at) if wanted else None
        if chosen is not None and not chosen.issuperset(life.lines.values()):
            self._broken("unexpected", f"{path}, or lines of it, did not die of {wanted}, and were replayed")

    def _check_repeated(self, call: Call, life: Life) -> None:
        """[P4] What was replayed from a letter, and completed, is not run again by whoever repeats the call."""
        path = call.asked["path"]
        lettered_at = max((at for at, _ in self._letters.written.get(path, ())), default=0.0)
        recorded = [one for one in self._ledger.lives.get(life.path, ()) if one.record]
        last = max(recorded, key=lambda one: one.recorded_at, default=None)
        if last is None or last.body != life.body or last.record is None or last.record.outcome != "completed":
            return
        is_known = last.recorded_at < call.invoked_at and not last.record.dead_lines
        # Within one second, S3 cannot tell a replay from the death before it.
        is_later = last.put_at > EPOCH + timedelta(seconds=int(lettered_at))
        asked = (one for calls in self.calls.values() for one in calls if one.name == "replay" and last in one.lives)
        if is_known and is_later and any(one.asked["path"] == path for one in asked):
            self._broken("P4", f"{path} was replayed and completed, and the same letter was replayed again")

    def _check_configure(self, call: Call) -> None:
        if not call.puts:
            self._broken("unexpected", f"configure({call.asked}) was acknowledged, and nothing was written")
        if "paused" in call.asked:
            self.paused_at = self._world.now if call.asked["paused"] else None

    def _check_cancel(self, call: Call) -> None:
        """[P3] The outcome that an operator is told is the one that is recorded, and stays. Of a replay that lies in
        its group twice, it is that of the other one.
        """
        generation, path = call.answer.generation, call.asked["path"]
        if call.answer.path != path and any(
            life.put_id == call.answer.put_id for life in self._ledger.lives.get(path, ())
        ):
            path = call.answer.path
        life = self._ledger.find(path, generation.etag, generation.put_at)
        if life is None or life.record is None or life.record.outcome != call.answer.outcome:
            self._broken("P3", f"{call.asked['path']} was told to be {call.answer.outcome}, and is not recorded so")
        elif call.answer.is_withdrawn and life.puts == 1:
            self.withdrawn.add(life)
            self.check_withdrawn(life)

    def check_withdrawn(self, life: Life) -> None:
        """[P4] What nobody worked on when it was cancelled is not what its worker ran, and deleted."""
        if life in self.finished & self.withdrawn:
            self._broken("P4", f"{life.path} was told to be withdrawn, and its worker ran and deleted it")

    def _check_edit(self, call: Call) -> None:
        """[P1] What was acknowledged was stored, by this call or by one before it."""
        found = self._ledger.lives.get(call.answer, ())
        if not any(one.body == call.asked["body"] and one.last_put_at <= self._world.now for one in found):
            self._broken("P1", f"an edit of {call.asked['path']} was acknowledged, and never stored")

    def _check_nothing(self, call: Call) -> None:
        """What it did is judged where it did it."""

    def check_settings(self, key: str) -> None:
        """No change that was acknowledged is gone, unless a later one changed the same setting."""
        stored = self._world.objects.get(key)
        document = parse_json(stored.body) if stored else {}
        changes = [one for calls in self.calls.values() for one in calls if one.name == "configure"]
        changes = [one for one in changes if one.state != "failed"]
        for name in sorted({name for one in changes for name in one.asked}):
            asked = [one for one in changes if name in one.asked]
            sure = [one for one in asked if one.state == "ok"]
            # A call without an answer may have been carried out at any time since.
            last = [
                one
                for one in asked
                if one.state != "ok" or not any(other.invoked_at > one.answered_at for other in sure)
            ]
            allowed = {one.asked[name] for one in last} | (set() if sure else {None})
            found = document.get(f"{name}_seconds", document.get(name))
            if found not in allowed:
                self._broken("unexpected", f"{name} is {found}, and the last that was asked for is {allowed}")


def _was_there(life: Life, since: float) -> bool:
    """Whether the message lay in the queue, or was finished, at that time or later."""
    return life.last_put_at >= since or not life.end or life.ended_at >= since or life.recorded_at >= since


_JUDGES: dict[str, Callable[[History, Call], None]] = {
    "enqueue": History._check_enqueue,
    "enqueue_many": History._check_enqueue_many,
    "replay": History._check_replay,
    "rerun": History._check_rerun,
    "edit": History._check_edit,
    "configure": History._check_configure,
    "upload": History._check_nothing,
    "remove": History._check_nothing,
    "purge": History._check_nothing,
    "discard": History._check_nothing,
    "cancel": History._check_cancel,
    "release": History._check_nothing,
}
