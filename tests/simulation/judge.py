"""The judge: holds every single step against the promises, at the instant when it happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from s3queue.documents.dead_letter import DeadLine
from s3queue.documents.lease import Lease
from s3queue.documents.record import Record
from s3queue.keys import LINES, is_batch, is_lines, name_of, without_mark
from s3queue.protocol.claim import Claim
from s3queue.protocol.removal import HEAD_VALID_SECONDS

from .ledger import Holding, Ledger, Life, Run
from .world import EPOCH, QUEUE, Process, World

LEASES = f"{QUEUE}/leases/"
RECORDS = f"{QUEUE}/records/"
DEAD = f"{QUEUE}/dead/"
MESSAGES = (f"{QUEUE}/messages/", f"{QUEUE}/delayed/")
ROOT = len(QUEUE) + 1
#: Processes whose PUTs of messages are replays: operators, and whoever is on trial in the crash matrix.
REPLAYERS = ("operator", "subject")


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: lost, duplicate outcome, double lease, or unexpected."""

    kind: str
    promise: str
    what: str
    at: float

    def __str__(self) -> str:
        return f"{self.kind} {self.promise} at {self.at:.2f} s: {self.what}".replace("  ", " ")


KINDS = {
    "P1": "lost",
    "P2": "double live lease",
    "P3": "duplicate outcome",
    "P4": "unexpected",
    "P5": "unexpected",
    "P6": "lost",
    "unexpected": "unexpected",
}


class Judge:
    """Watches the store and the claims."""

    def __init__(self, max_attempts: int) -> None:
        self.ledger = Ledger()
        self.violations: list[Violation] = []
        self.max_attempts = max_attempts
        self._held: list[Holding] = []
        #: Lease ETag → when it was written.
        self._leased_at: dict[str, float] = {}
        #: Dead letter → when it was written, and with which bytes.
        self.letters: dict[str, list[tuple[float, bytes]]] = {}
        #: Process and path → when the last PUT that was carried out was sent.
        self._sent_at: dict[tuple[str, str], float] = {}
        #: Message and bytes → how often an operator PUT them, and how often one deleted a letter that holds them.
        self._replays: Counter[tuple[str, bytes]] = Counter()
        self._letters_gone: Counter[tuple[str, bytes]] = Counter()
        #: Messages that an operator purged.
        self.purged: set[bytes] = set()
        #: Dead letters taken by a delete that nothing could stop any more.
        self.unstoppable: set[str] = set()
        self.world: World
        #: How long a lease may be there after its owner died, and who owns which; None: no matter.
        self.redelivered_within: float | None = None
        self.workers: Mapping[str, Process] = {}

    def broken(self, promise: str, what: str) -> None:
        tag = "" if promise == "unexpected" else f"[{promise}]"
        violation = Violation(KINDS[promise], tag, what, self.world.now)
        self.violations.append(violation)
        self.world.trace.append((self.world.now, "judge", "", "", f"BROKEN {violation}"))

    # The store

    def performed(self, process: Process, operation: str, key: str, sent_at: float, before: Any, after: Any) -> None:
        if key.startswith(LEASES):
            self._lease(process, key[len(LEASES) :], before, after)
        elif key.startswith(RECORDS):
            self._record(process, key[len(RECORDS) :], before, after)
        elif key.startswith(DEAD):
            if after:
                self._dead_letter(key[len(DEAD) :], after)
            else:
                self._replayed(key[len(DEAD) :], before, sent_at)
        elif key.startswith(MESSAGES):
            path = key[ROOT:]
            if after:
                self._sent_at[process.name, path] = sent_at
                if process.name.startswith(REPLAYERS):
                    self._replays[path, after.body] += 1
                if before and process.name.startswith("operator"):
                    self.broken("P1", f"a replay of {path} overwrote what was PUT there")
                self.ledger.put(path, after, self.world.now, was_leased=LEASES + path in self.world.objects)
            else:
                self._deleted(path, sent_at)

    def enqueued(self, process: Process, path: str, since: float) -> None:
        """[P1] Whoever is told that a message is enqueued has stored it."""
        if self._sent_at.get((process.name, path), -1.0) < since:
            self.broken("P1", f"{process.name} was told that {path} is enqueued, and nothing was stored")

    def stepped(self) -> None:
        """[P2] Whoever believes, by his own clock, that he holds a message is the one whose lease lies there."""
        for holding in self._held:
            claim = holding.claim
            lease = self.world.objects.get(LEASES + claim.path)
            if (lease.etag if lease else "") in holding.etags or not claim.is_alive():
                continue
            self.broken("P2", f"{holding.process.name} still holds {claim.path}, whose lease is another's or gone")
            self._held.remove(holding)
            return

    def _lease(self, process: Process, path: str, before: Any, after: Any) -> None:
        lease = Lease.from_bytes(after.body, path) if after else None
        if after:
            self._leased_at[after.etag] = self.world.now
        former = Lease.from_bytes(before.body, path) if before else None
        if lease and lease.state == "processing" and (not former or _is_new_claim(former, lease)):
            life = self.ledger.present.get(path)
            if life:
                life.claims += 1
        if before is None:
            return
        if former and lease and self.redelivered_within is not None:
            self._check_redelivery(path, former, lease, self._leased_at[before.etag])
        for holding in [one for one in self._held if one.process is process and before.etag in one.etags]:
            if lease is None or lease.state == "waiting":
                self._held.remove(holding)
            else:
                holding.etags.add(after.etag)

    def _check_redelivery(self, path: str, former: Lease, lease: Lease, leased_at: float) -> None:
        """A lease whose owner died ends when its time is over, and its message need not wait longer than that."""
        owner = self.workers.get(former.owner)
        if former.state == "waiting" or owner is None or owner.is_alive:
            return
        late = self.world.now - max(owner.died_at, leased_at)
        if late > (self.redelivered_within or 0.0):
            self.broken("unexpected", f"{path} was given to others {late:.1f} s after its worker died")
        if lease.retry_at and (lease.retry_at - EPOCH).total_seconds() > self.world.now:
            self.broken("unexpected", f"{path} has to wait although its lease ran out")

    def _record(self, process: Process, path: str, before: Any, after: Any) -> None:
        if after is None:
            self.broken("P3", f"the record of {path} was deleted")
            return
        record = Record.from_bytes(after.body, path)
        life = self.ledger.find(path, record.generation.etag, record.generation.put_at)
        if life is None:
            self.broken("unexpected", f"a record of {path} for a generation that never was")
            return
        former = Record.from_bytes(before.body, path) if before else None
        known = former and self.ledger.find(path, former.generation.etag, former.generation.put_at)
        if known and known.order > life.order:
            self.broken("P3", f"the record of {path} went back to an older generation")
        if life.record:
            self.broken("P3", f"{path} was {life.record.outcome}, and was recorded again as {record.outcome}")
            return
        life.record = record
        life.recorded_at = self.world.now
        life.recorded_alive = any(
            one.process is process and one.claim.path == path and one.claim.is_alive() for one in self._held
        )
        self._check_outcome(life, record)

    def _check_outcome(self, life: Life, record: Record) -> None:
        """[P1] Completed means that a handler said so, for every line that is not dead."""
        if record.failure and record.failure.type == "MessageVanished" and life.end != "merged":
            self.broken("P1", f"{life.path} vanished before it was finished")
        if record.outcome != "completed":
            alike = self.ledger.alike(life)
            claims = sum(one.claims for one in alike)
            # Claimed just before it was PUT anew, and read just after: then it is the one that ran.
            if record.attempt > claims and not any(one.runs for one in alike):
                self.broken("P5", f"{life.path} died of attempt {record.attempt}, and was claimed {claims} times")
            return
        alike = self.ledger.alike(life)
        done = {line for line in life.lines if any(one.succeeded(line) for one in alike)}
        if len(done) < len(life.lines) - record.dead_lines:
            self.broken("P1", f"{life.path} is recorded as completed, and not every handler succeeded")

    def _dead_letter(self, path: str, stored: Any) -> None:
        """[P3] A dead letter is the bytes of something that was recorded as dead."""
        self.letters.setdefault(path, []).append((self.world.now, stored.body))
        covered = self._covered(path, stored)
        if not covered:
            self.broken("P3", f"a dead letter {path}, and nothing of these bytes was recorded as dead")
        for life, lines in covered:
            life.lettered |= lines

    def _covered(self, path: str, letter: Any) -> list[tuple[Life, set[int]]]:
        """The lives whose dead lines this letter holds."""
        origin = self.origin(path)
        names = {origin, origin.removesuffix(LINES)} if is_lines(origin) else {origin}
        candidates = [life for name in names for life in self.ledger.lives.get(name, ())]
        return [(life, lines) for life in candidates if (lines := self._covers(life, letter))]

    def _covers(self, life: Life, stored: Any) -> set[int]:
        record = life.record
        if record is None or not (record.outcome == "dead" or record.dead_lines):
            return set()
        if not is_batch(life.path) or stored.body == life.body:
            return set(life.lines) if stored.body == life.body else set()
        dead = [one for line in stored.body.splitlines() if (one := DeadLine.from_bytes(line))]
        return {one.number for one in dead if life.lines.get(one.number) == one.body}

    def origin(self, path: str) -> str:
        """The message that a letter is of. A name that looks marked may be a producer's own."""
        names = {path, path.removesuffix(LINES)}
        return path if names & self.ledger.lives.keys() else without_mark(path)

    def _replayed(self, path: str, letter: Any, sent_at: float) -> None:
        """[P1] A letter was deleted: it was replayed itself. Whether its bytes are still there is checked at the end.

        Look and delete are two requests: what comes after the look, or while the delete is on its way, is not seen.
        """
        target = (f"messages/{name_of(self.origin(path))}", letter.body)
        self._letters_gone[target] += 1
        if self._letters_gone[target] > self._replays[target]:
            self.broken("P1", f"the letter {path} was deleted, and only its twin was replayed")
        if self.letters[path][-1][0] > sent_at - HEAD_VALID_SECONDS:
            self.unstoppable.add(path)

    def _deleted(self, path: str, sent_at: float) -> None:
        """[P1] A message goes only after its outcome is written, and what died lies in `dead/` by then."""
        life = self.ledger.present.pop(path)
        life.end = "deleted"
        life.ended_at = self.world.now
        if life.record is None:
            self._merge(life, sent_at)
            return
        if sent_at < life.began_at:
            # A delete of its former life, of equal bytes, that was on its way all the time: nothing can stop it.
            life.end = "merged"
            life.is_unstoppable = True
        elif life.record.outcome == "dead" or life.record.dead_lines:
            self._check_letters(life, life.record)

    def _merge(self, life: Life, sent_at: float) -> None:
        """Equal bytes are the same message while the former is at work, and a delete on its way cannot be stopped."""
        former = [one.record for one in self.ledger.alike(life) if one.record]
        if not former or not (life.was_leased or sent_at < life.began_at):
            self.broken("P1", f"{life.path} was deleted, and nothing is recorded")
        life.end = "merged"
        life.is_unstoppable = sent_at < life.began_at

    def _check_letters(self, life: Life, record: Record) -> None:
        """[P1] [P3] Every line is done or a dead letter, and not both."""
        if record.failure and record.failure.type == "MessageVanished":
            return
        lines = life.lines
        done = int((record.lines or {}).get("completed", 0))
        missing = set(lines) - life.lettered
        alike = self.ledger.alike(life)
        if len(missing) != done:
            if life.was_leased and any(one.record for one in alike if one is not life):
                life.end = "merged"
                return
            self.broken("P1", f"{life.path}: {done} of {len(lines)} done, {len(life.lettered)} dead letters")
        if any(not any(one.succeeded(line) for one in alike) for line in missing):
            self.broken("P1", f"{life.path}: a line is neither done nor a dead letter")

    # Claims and handlers

    def hold(self, process: Process, claim: Claim) -> None:
        for holding in self._held:
            if holding.claim is claim:
                return
            if holding.claim.path == claim.path and holding.claim.is_alive() and claim.is_alive():
                self.broken("P2", f"{holding.process.name} and {process.name} both hold {claim.path}")
        leased_at = self._leased_at.get(claim.lease_etag, 0.0)
        self._held.append(Holding(process, claim, {claim.lease_etag}, leased_at))
        self.stepped()

    def let_go(self, process: Process) -> None:
        """The process is done with everything that it claimed."""
        self._held = [holding for holding in self._held if holding.process is not process]

    def drop(self, claim: Claim) -> None:
        self._held = [holding for holding in self._held if holding.claim is not claim]

    def start(self, process: Process, claim: Claim, line: int) -> Run:
        generation = claim.message.generation
        run = Run(claim.attempt, process, self.world.now)
        self.world.note(process, "run", claim.path, f"line {line}, attempt {claim.attempt}")
        life = self.ledger.find(claim.path, generation.etag, generation.put_at)
        if life is None:
            self.broken("unexpected", f"a handler runs {claim.path}, a generation that never was")
            return run
        if not claim.is_alive():
            self.broken("P4", f"{process.name} starts a handler for {claim.path} after its own deadline")
        holding = next((one for one in self._held if one.claim is claim), None)
        if holding is None:
            self.broken("P2", f"{process.name} runs {claim.path} without holding it")
        elif life.record and life.puts == 1 and (life.recorded_alive or life.recorded_at < holding.leased_at):
            self.broken("P4", f"{claim.path} runs again after its outcome was recorded")
        runs = life.runs.setdefault(line, [])
        runs.append(run)
        if len(runs) > self.max_attempts * life.puts:
            self.broken("P5", f"{claim.path} line {line}: start {len(runs)} of at most {self.max_attempts}")
        return run


def _is_new_claim(former: Lease, lease: Lease) -> bool:
    """Whether this write of a lease begins an attempt; an extension or a heartbeat's successor does not."""
    known = former.generation.etag if former.generation else former.expected_etag
    named = lease.generation.etag if lease.generation else lease.expected_etag
    return former.state != "processing" or (bool(known) and known != named)
