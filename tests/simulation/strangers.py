"""Strangers: someone else writes into the queue what he likes, in the middle of honest work.

He forges leases, records, heartbeats, reminders, locks and the documents under the root, PUTs messages that nobody may
read or whose names make no sense, and more than a page of plain names that lie before the urgent ones. Whatever is his
has "stray" in its name; his own messages have to end as PROTOCOL.md says. Nothing honest is lost or starved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from s3queue.documents.lease import Lease
from s3queue.documents.record import Record
from s3queue.errors import AccessDenied, CorruptState, Unreadable
from s3queue.keys import Keys

from .cast import Cast
from .faults import Profile
from .judge import Judge
from .producers import Producers
from .world import World

STRANGERS = Profile(name="strangers", lost_events=1.0, pulls=1.0, pulls_only=True)
PAGE = 3
#: Plain names that lie before `p200/` in every LIST, on more pages than a worker reads, and how long each takes.
PLAIN = 36
SECONDS_EACH = 1.5
#: Seconds within which honest messages start, urgent ones sooner.
STARTED_WITHIN = 75.0
URGENT_WITHIN = 12.0
#: In one of so many schedules, nobody can read much of what he forges.
HIDDEN, HIDDEN_OF = 97, 160
#: When the stranger leaves.
LEAVES_AT = 20.0

_EXTREMES: tuple[Any, ...] = (
    None,
    True,
    -1,
    1e308,
    "",
    "x" * 3000,
    "9999-12-31T23:59:59-14:00",
    [],
    {},
    [[1, 2]],
    "\0",
)
_GARBAGE = (b"", b"null", b"\xff\xfe\x00", b"[" * 5000, b'{"v":1}', b'{"v":true}', b"x" * 2**21)
_BODY = b'{"id": "stray", "takes": 0.1, "plan": "k"}'


class Strangers:
    """What the stranger does, and what must become of it."""

    def __init__(self, world: World, judge: Judge, cast: Cast, producers: Producers) -> None:
        self.world = world
        self.judge = judge
        self.cast = cast
        self._producers = producers
        self._root = judge.root
        #: His messages → how each has to end.
        self._endings: dict[str, Callable[[str], str]] = {}
        self._urgent = ""
        # By the seed, so that nothing else is drawn differently.
        self._hides = world.seed % HIDDEN_OF == HIDDEN

    def begin(self) -> None:
        self.world.store.page = PAGE
        self._hide_the_urgent()
        self._producers.keep(self.cast.process("stranger"), self._forge_all)

    def _hide_the_urgent(self) -> None:
        body = {"id": "plain", "takes": SECONDS_EACH, "plan": "k"}
        for number in range(PLAIN):
            self._put(f"messages/p1000-{number}", json.dumps(body | {"id": f"plain-{number}"}).encode())
        self._urgent = "messages/p200/urgent"
        self._put(self._urgent, json.dumps(body | {"id": "urgent"}).encode())

    def _put(self, path: str, body: bytes = _BODY) -> None:
        self.world.store.put(f"{self._root}{path}", body)

    def _forge(self, path: str, body: bytes) -> None:
        """A document, which may be archived, or under a key of his: then a HEAD is refused, too."""
        key = f"{self._root}{path}"
        if self._hides and self.world.random.random() < 0.6:
            etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
            self.world.store.hidden[key, etag] = self.world.random.choice((AccessDenied, Unreadable))
        self._put(path, body)

    def _forge_all(self) -> None:
        tricks = [self._lease, self._owner, self._record, self._refused, self._names, self._documents, self._heartbeat]
        number = 0
        while self.world.now < LEAVES_AT:
            number += 1
            self.world.random.choice(tricks)(number)
            self.world.sleep(self.world.random.random() * 1.5)
        self._forge("queue.json", self.world.random.choice(_GARBAGE))
        self.world.sleep(STARTED_WITHIN)
        self.check()
        self.world.store.delete(f"{self._root}queue.json")

    def _forged(self, document: bytes) -> bytes:
        """A document with a value that makes no sense, or none at all."""
        chance = self.world.random
        if chance.random() < 0.5:
            return chance.choice(_GARBAGE)
        found = json.loads(document)
        found[chance.choice(sorted(found))] = chance.choice(_EXTREMES)
        return json.dumps(found).encode()

    # Tricks

    def _lease(self, number: int) -> None:
        path = f"messages/stray-lease-{number}"
        self._forge(f"leases/{path}", self._forged(self._valid_lease("nobody")))
        self._put(path)
        self._endings[path] = self._is_over

    def _owner(self, number: int) -> None:
        """A lease whose owner has a name as long as a key can be, and no heartbeat."""
        path = f"messages/stray-owner-{number}"
        self._put(f"leases/{path}", self._valid_lease("x" * 1000))
        self._put(path)
        self._endings[path] = self._is_over

    def _record(self, number: int) -> None:
        path = f"messages/stray-record-{number}"
        self._forge(f"records/{path}", self.world.random.choice(_GARBAGE))
        self._put(path)
        self._endings[path] = self._is_completed

    def _refused(self, number: int) -> None:
        path = f"messages/stray-refused-{number}"
        kind = self.world.random.choice((AccessDenied, Unreadable))
        self.world.store.refused[f"{self._root}{path}"] = kind
        self._put(path)
        self._endings[path] = self._is_buried_in_place

    def _names(self, number: int) -> None:
        """Keys that are no messages, leases or reminders."""
        self._put(f"retries/stray-{number}", b"")
        self._put(f"leases/stray-{number}", b"")
        self._put("messages/stray-folder/", b"")
        path = f"delayed/stray-no-time/{number}"
        self._put(path)
        self._endings[path] = self._is_over

    def _documents(self, number: int) -> None:
        forged = self._forged(b'{"v": 1, "leases": "", "messages": "", "pending": 0, "visibility_timeout_seconds": 4}')
        mixed = b'{"v": 1, "leases": 5, "messages": [], "pending": "x", "paused": "yes"}'
        name = self.world.random.choice(("queue.json", "stats.json", "sweep.json"))
        self._forge(name, self.world.random.choice((forged, mixed)))

    def _heartbeat(self, number: int) -> None:
        self._forge(f"workers/stray-{number}", self.world.random.choice(_GARBAGE))
        self._forge(f"locks/stray-{number}", self.world.random.choice(_GARBAGE))

    def _valid_lease(self, owner: str) -> bytes:
        timeout = self.cast.settings.visibility_timeout
        return Lease(state="processing", attempt=1, owner=owner, nonce="stray", timeout=timeout).to_bytes()

    # Verdict

    def check(self) -> None:
        for path, ends in self._endings.items():
            if problem := ends(path):
                self.judge.broken("P1", f"{path}: {problem}")
        left = [key for key in self.world.objects if key.startswith(f"{self._root}retries/stray")]
        if left:
            self.judge.broken("P6", f"{left[0]} is no reminder, and is still there")
        for life in self.judge.ledger.all():
            runs = [run.began_at for runs in life.runs.values() for run in runs]
            waited = min(runs, default=self.world.now) - life.began_at
            bound = URGENT_WITHIN if life.path == self._urgent else STARTED_WITHIN
            if waited > bound and life.end != "overwritten":
                self.judge.broken("P6", f"{life.path} started after {waited:.0f} s, at most {bound:.0f} are promised")

    def _read_record(self, path: str) -> Record | None:
        stored = self.world.objects.get(f"{self._root}records/{path}")
        try:
            return Record.from_bytes(stored.body, path) if stored else None
        except CorruptState:
            return None

    def _is_completed(self, path: str) -> str:
        record = self._read_record(path)
        return "" if record and record.outcome == "completed" else "it has not completed"

    def _is_over(self, path: str) -> str:
        """Completed, or dead with its bytes in a letter: a forged lease may look like one that ran out."""
        if not self._is_completed(path):
            return ""
        keys = Keys(self.cast.name)
        buried = keys.buried_path(path) if keys.problem(path) else path
        letter = self.world.objects.get(keys.dead(buried))
        is_there = f"{self._root}{path}" in self.world.objects
        if letter and letter.body == _BODY and not is_there:
            return ""
        return "it has neither completed nor died" if is_there else "it is gone without a letter"

    def _is_buried_in_place(self, path: str) -> str:
        record = self._read_record(path)
        if f"{self._root}{path}" not in self.world.objects:
            return "nobody could read it, and it was deleted"
        if record is None or record.outcome != "dead":
            return "nobody can read it, and it is not dead"
        return "" if f"{self._root}dead/{path}" in self.world.objects else "it is dead, and no letter stands for it"
