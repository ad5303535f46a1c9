"""The judge: holds every single step against the promises, at the instant when it happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from s3queue.documents.lease import Lease
from s3queue.documents.message import MOVED
from s3queue.documents.record import Record
from s3queue.encoding import put_id_of
from s3queue.paths import runs_once
from s3queue.protocol.claim import Claim
from s3queue.protocol.liveness import RUN

from .cancellations import Cancellations
from .edits import Edits
from .flow import Dedup
from .history import LOOKED_WITHIN, Call, History
from .kept_payloads import Kept
from .ledger import Holding, Ledger, Life, Run
from .letters import Letters
from .machines import EPOCH
from .members import FlowMembers
from .partitions import Partitions
from .rates import Rates
from .releases import Releases
from .sends import SentMessages
from .unread import Unread
from .violations import KINDS, Violation
from .world import QUEUE, Process, World

#: Every process knows its settings within ten seconds, and claims nothing later than it has read them.
REFRESHED_WITHIN = 12.0
#: Keys of a stranger, who may write into the queue, have this in them: what becomes of them, `Strangers` judges.
STRAY = "stray"


class Judge:
    """Watches the store, the claims and the calls of one queue."""

    def __init__(self, world: World, max_attempts: int, queue: str = QUEUE) -> None:
        self.world = world
        self.root = f"{queue}/"
        self._leases = f"{queue}/leases/"
        self.ledger = Ledger()
        self.unread = Unread(self.ledger, self.broken)
        self.letters = Letters(self.ledger, self.broken, self.unread.deleted)
        self.edits = Edits(self.ledger, self.letters, self.broken)
        self.kept = Kept(world, self.root, self.ledger, self.broken)
        self.history = History(world, self.root, self.ledger, self.letters, self.broken)
        self.sends = SentMessages(world, self.root, self.ledger, self.broken)
        self.dedup = Dedup(world, self.ledger, self.broken)
        self.releases = Releases()
        self.cancellations = Cancellations(world, self._leases, self.history)
        self.members = FlowMembers(world, self.broken)
        self.members.ledgers[queue] = self.ledger
        self.partitions = Partitions(self)
        self.rates = Rates(self.broken)
        self.violations: list[Violation] = []
        self.max_attempts = max_attempts
        self._held: list[Holding] = []
        #: Lease ETag → when it was written.
        self.leased_at: dict[str, float] = {}
        #: How long a lease may be there after its owner died, and who owns which; None: no matter.
        self.redelivered_within: float | None = None
        self.workers: Mapping[str, Process] = {}
        #: Name of a schedule → when it was made.
        self.schedules_made: dict[str, float] = {}
        #: Whether the workers sweep: whoever dies may be the one that does, and then another one has to notice first.
        self.do_workers_sweep = False

    def broken(self, promise: str, what: str) -> None:
        tag = "" if promise == "unexpected" else f"[{promise}]"
        violation = Violation(KINDS[promise], tag, what, self.world.now)
        self.violations.append(violation)
        self.world.trace.append((self.world.now, "judge", "", "", f"BROKEN {violation}"))

    # The store

    def performed(self, process: Process, operation: str, key: str, sent_at: float, before: Any, after: Any) -> None:
        if STRAY in key or self.partitions.performed(process, key, sent_at, before, after):
            return
        kind, _, path = key.removeprefix(self.root).partition("/")
        if kind == "leases":
            call = self.history.asked(process, sent_at)
            self._held = self.releases.written(call, path, before.etag if before else "", self._held)
            self._lease(process, path, before, after)
        elif kind == "records":
            self._record(process, path, sent_at, before, after)
        elif kind == "dead":
            call = self.history.asked(process, sent_at)
            if before and call and call.name == "discard":
                self.letters.discard(before, after, call.asked.get("error_type"))
            if after:
                self.letters.write(path, self.world.now, before, after)
            else:
                was_seen = self.letters.deleted(path, self.world.now, sent_at)
                if was_seen and _is_replay(call, process):
                    self.letters.replay_deleted(path, before)
        elif kind == "done" and after:
            self.kept.write(path, after)
        elif kind in ("messages", "delayed"):
            path = f"{kind}/{path}"
            if after:
                is_leased = self.partitions.is_at_work(path, before)
                life = self.ledger.put(path, after, self.world.now, was_leased=is_leased)
                self.partitions.put(life)
                for one in self.ledger.lives[path]:
                    one.is_missed = False  # Its name was PUT anew: nobody can tell any more that it was gone.
                call = self.history.asked(process, sent_at)
                if before and call and call.name == "replay":
                    self.unread.replayed(life)
                if self.sends.put(life, after) or self.members.put(life, after):
                    return
                if call and call.name == "edit":
                    self.edits.put(call, life, before, after)
                elif _is_replay(call, process):
                    self.letters.replay_put(path, after.body)
                if call and call.name == "replay":
                    self.edits.replayed(life)
                # What could not be read keeps its place.
                if call and call.name in ("replay", "rerun", "edit") and before is None:
                    self.partitions.replayed(call, life)
                if call and call.name in ("replay", "rerun"):
                    self.kept.replay(call, life, after)
                self.history.put(process, key, sent_at, before, after, life)
            else:
                self.cancellations.deleted(process, self.ledger.present.get(path), self._held)
                self._deleted(process, path, sent_at, put_id_of(before.metadata))
        elif kind == "outbox":
            self.sends.staged(key, after)
        elif kind == "flows":
            self.members.performed(key, before, after)
        elif kind == "dedup" and after:
            self.partitions.placed(self.history.asked(process, sent_at), self.dedup.marked(path, before, after))
        elif kind == "queue.json" and after:
            self.history.put(process, key, sent_at, before, after, None)

    def stepped(self) -> None:
        """[P2] Whoever believes, by his own clock, that he holds a message is the one whose lease lies there."""
        for holding in self._held:
            claim = holding.claim
            lease = self.world.objects.get(self._leases + claim.path)
            if (lease.etag if lease else "") in holding.etags or not claim.is_alive():
                continue
            self.broken("P2", f"{holding.process.name} still holds {claim.path}, whose lease is another's or gone")
            self._held.remove(holding)
            return

    def _lease(self, process: Process, path: str, before: Any, after: Any) -> None:
        lease = Lease.from_bytes(after.body, path) if after else None
        if after:
            self.leased_at[after.etag] = self.world.now
        former = Lease.from_bytes(before.body, path) if before else None
        life = self.ledger.present.get(path)
        if lease and lease.state == "processing" and (not former or _is_new_claim(former, lease)):
            self.ledger.claimed[path].append(self.world.now)
            if life:
                life.claims += 1
        if life and after is None:
            life.given_back_at = self.world.now
        if before is None:
            return
        if former and lease and self.redelivered_within is not None:
            self._check_redelivery(path, former, lease, self.leased_at[before.etag])
        holdings = [one for one in self._held if one.process is process and before.etag in one.etags]
        # Its holder, or whoever ends a Spark run.
        if former and lease is None and _is_first(former) and (holdings or former.owner.startswith(RUN)):
            self._given_back(path)
        for holding in holdings:
            if lease is None or lease.state == "waiting":
                self._held.remove(holding)
            else:
                holding.etags.add(after.etag)

    def _given_back(self, path: str) -> None:
        """The lease of a first attempt was deleted: had nothing started in it, and the message been deleted by
        hand since, that is as if it had been deleted before the claim, when no lease said that it was there.
        """
        for life in self.ledger.lives.get(path, ()):
            if life.is_untouched and not life.runs:
                life.is_missed = False

    def _check_redelivery(self, path: str, former: Lease, lease: Lease, leased_at: float) -> None:
        """A lease whose owner died ends when its time is over, and its message need not wait longer than that."""
        owner = self.workers.get(former.owner)
        if former.state == "waiting" or owner is None or owner.is_alive:
            return
        crashes = [one.died_at for one in self.workers.values()] if self.do_workers_sweep else [owner.died_at]
        late = self.world.now - max(*crashes, leased_at)
        if late > (self.redelivered_within or 0.0):
            self.broken("unexpected", f"{path} was given to others {late:.1f} s after its worker died")
        if lease.retry_at and (lease.retry_at - EPOCH).total_seconds() > self.world.now:
            self.broken("unexpected", f"{path} has to wait although its lease ran out")

    def _record(self, process: Process, path: str, sent_at: float, before: Any, after: Any) -> None:
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
        # An upload of equal bytes that began at its date is the same generation, and may come after its record.
        if known and known.order > life.order and known.last_put_at <= known.recorded_at:
            self.broken("P3", f"the record of {path} went back to an older generation")
        if life.record and replace(record, stored=life.record.stored) == life.record:  # how far its sends are stored
            if record.stored.joined(life.record.stored) != record.stored:
                self.broken("P7", f"the record of {path} forgets which of its sends are stored")
            life.record = record
            return
        if life.record:
            self.broken("P3", f"{path} was {life.record.outcome}, and was recorded again as {record.outcome}")
            return
        if life.is_repeated:
            self.broken("P7", f"{path} was finished, sent again, and is recorded a second time")
        self.settle(life, record)
        life.recorded_alive = any(
            one.process is process and one.claim.path == path and one.claim.is_alive() for one in self._held
        )
        if record.outcome == "cancelled":
            # Under a lease of its own, a canceller decides like whoever works on the message.
            lease = self.world.objects.get(self._leases + path)
            life.recorded_alive = lease is not None and Lease.from_bytes(lease.body, path).owner == record.worker
            self.cancellations.recorded(process, life, sent_at)

    def settle(self, life: Life, record: Record) -> None:
        """The message has this outcome from now on."""
        life.record = record
        self.edits.recorded(life)
        self.members.started_flows.recorded(life, record, self.sends.recorded(life, record))
        life.recorded_at = self.world.now
        self._check_outcome(life, record)
        self.kept.recorded(life, record)

    def _check_outcome(self, life: Life, record: Record) -> None:
        """[P1] Completed means that a handler said so, for every line that is not dead."""
        ends = {life.end, *(one.end for one in self.ledger.lives[life.path] if life.end == "overwritten")}
        if record.failure and record.failure.type == "MessageVanished" and not ends & {"merged", "removed"}:
            self.broken("P1", f"{life.path} vanished before it was finished")
        # Equal bytes are one message while they are at work; what was PUT after they had an outcome is another one.
        alike, since = self.ledger.alike_since(life)
        if record.outcome != "completed":
            claims = self.ledger.claims_of(life)
            # Claimed just before it was PUT anew, and read just after: then it is the one that ran. What was deleted by
            # hand is charged with a GET whose answer was lost.
            is_gone = record.failure is not None and record.failure.type == "MessageVanished"
            have_run = any(run.began_at >= since for one in alike for runs in one.runs.values() for run in runs)
            if record.attempt > claims + is_gone and not have_run:
                self.broken("P5", f"{life.path} died of attempt {record.attempt}, and was claimed {claims} times")
            return
        done = {line for line in life.lines if any(one.succeeded(line, since) for one in alike)}
        if len(done) < len(life.lines) - record.dead_lines:
            self.broken("P1", f"{life.path} is recorded as completed, and not every handler succeeded")

    def _deleted(self, process: Process, path: str, sent_at: float, put_id: str) -> None:
        """[P1] A message goes only after its outcome is written, and what died lies in `dead/` by then."""
        life = self.ledger.present.pop(path)
        life.end = "deleted"
        life.ended_at = self.world.now
        call = self.history.asked(process, sent_at)
        if call and call.name in ("purge", "remove"):
            self._removed(life, call.name, sent_at)
            return
        is_overtaken = sent_at < life.began_at or self.is_overtaken(life, sent_at)
        if not (is_overtaken and self.partitions.lease_key(path) in self.world.objects):
            self.sends.deleted(life)
            self.members.deleted(self.root.rstrip("/"), life, put_id)
        if life.is_repeated:
            life.end = "repeated"
            return
        if life.record is None and self.dedup.is_repeated(life, put_id):
            # A replay that was PUT twice, or what was replayed since, has its outcome: a death has its own letter.
            is_replayed = any(one.record and one.record.put_id.startswith(MOVED) for one in self.ledger.alike(life))
            life.end = "repeated" if put_id.startswith(MOVED) or is_replayed else "merged"
            return
        if life.record is None:
            self._merge(life, sent_at)
            return
        if is_overtaken:
            # A delete of its former life, of equal bytes, that was on its way all the time: nothing can stop it. What
            # this one has sent is stored nevertheless, because its lease is there, and leads to its record.  [P7]
            life.end = "merged"
            life.is_unstoppable = True
        elif life.record.outcome == "dead" or life.record.dead_lines:
            self.letters.check_complete(life, life.record)
        if life.end == "deleted":
            self.kept.check(life)

    def is_overtaken(self, life: Life, sent_at: float) -> bool:
        """Whether this is the DELETE of equal bytes that were at work when it was PUT, and had their outcome when the
        DELETE was sent, which was on its way for longer than their lease: someone has claimed what lies there since.
        """
        lease = self.world.objects.get(self.partitions.lease_key(life.path))
        is_claimed = lease is not None and self.leased_at.get(lease.etag, 0.0) > sent_at
        if is_claimed and not self.partitions.is_named(life.path):
            return False
        former = [one for one in self.ledger.alike(life) if one is not life and one.record]
        return is_claimed and life.was_leased and any(one.recorded_at <= sent_at for one in former)

    def _removed(self, life: Life, how: str, sent_at: float) -> None:
        """An operator deleted it: by hand, whatever it was at, or by a purge, which takes nothing that is at work."""
        life.end = "removed"
        self.history.removed.add(life.path)
        lease = self.world.objects.get(self._leases + life.path)
        held = Lease.from_bytes(lease.body, life.path) if lease else None
        named = held.generation if held and not held.is_cancelling else None
        # It may be the one before it, under the same name: equal bytes are one message while they are at work.
        life.worked_on = self.ledger.find(life.path, named.etag, named.put_at) if named else None
        life.is_missed = bool(named) or (how == "remove" and self.partitions.is_waiting(life))
        life.is_untouched = held is not None and _is_first(held) and not life.runs
        at_work = [one for one in self._held if one.claim.path == life.path and one.claim.is_alive()]
        if how == "purge" and any(one.leased_at < sent_at - LOOKED_WITHIN for one in at_work):
            self.broken("P1", f"{life.path} was purged while it was at work")

    def _merge(self, life: Life, sent_at: float) -> None:
        """Equal bytes are the same message while the former is at work, and a delete on its way cannot be stopped."""
        former = [one.record for one in self.ledger.alike(life) if one.record]
        if former and runs_once(life.path):
            # This instant of a schedule has run; it was put again, late, and cleared away.  [P10]
            life.end = "merged"
            return
        if not former or not (life.was_leased or sent_at < life.began_at):
            self.broken("P1", f"{life.path} was deleted, and nothing is recorded")
        life.end = "merged"
        life.is_unstoppable = sent_at < life.began_at

    # Claims and handlers

    def hold(self, process: Process, claim: Claim) -> None:
        if STRAY in claim.path or self.releases.has(claim):
            return
        for holding in self._held:
            if holding.claim is claim:
                return
            if holding.claim.path == claim.path and holding.claim.is_alive() and claim.is_alive():
                self.broken("P2", f"{holding.process.name} and {process.name} both hold {claim.path}")
        leased_at = self.leased_at.get(claim.lease_etag, 0.0)
        self._held.append(Holding(process, claim, {claim.lease_etag}, leased_at))
        self.stepped()

    def let_go(self, process: Process) -> None:
        """The process is done with everything that it claimed."""
        self._held = [holding for holding in self._held if holding.process is not process]

    def let_go_burials(self, process: Process) -> None:
        """The sweep of a worker is over; its other threads go on with what they hold."""
        self._held = [one for one in self._held if one.process is not process or one.claim.lease.state != "burying"]

    def drop(self, claim: Claim) -> None:
        self._held = [holding for holding in self._held if holding.claim is not claim]

    def start(self, process: Process, claim: Claim, line: int) -> Run:
        generation = claim.message.generation
        run = Run(claim.attempt, process, self.world.now)
        if STRAY in claim.path:
            return run
        self.rates.start(claim)
        if claim.within:
            return self.partitions.start(process, claim, run)
        self.world.note(process, "run", claim.path, f"line {line}, attempt {claim.attempt}")
        life = self.ledger.find(claim.path, generation.etag, generation.put_at)
        if life is None:
            self.broken("unexpected", f"a handler runs {claim.path}, a generation that never was")
            return run
        if not claim.is_alive():
            self.broken("P4", f"{process.name} starts a handler for {claim.path} after its own deadline")
        holding = next((one for one in self._held if one.claim is claim), None)
        if holding is None and not self.releases.has(claim):
            self.broken("P2", f"{process.name} runs {claim.path} without holding it")
        elif holding and life.record and life.puts == 1:
            # Its worker gave it back in the instant when it was cancelled: nobody can have known.
            is_unknown = self.cancellations.is_unknown(life, claim, holding.leased_at)
            if life.recorded_alive or (life.recorded_at < holding.leased_at and not is_unknown):
                self.broken("P4", f"{claim.path} runs again after its outcome was recorded")
        if life in self.history.withdrawn and life.puts == 1:
            self.broken("P4", f"{claim.path} runs, and was told to be withdrawn")
        if life.is_repeated and life.lines.get(line) not in self.history.replayed:
            self.broken("P7", f"{claim.path} was finished, sent again, and runs a second time")
        if holding:
            self.dedup.check_start(life, claim.message.put_id, holding.leased_at)
        paused_at = self.history.paused_at
        if paused_at is not None and holding and holding.leased_at > paused_at + REFRESHED_WITHIN:
            self.broken("unexpected", f"{claim.path} was claimed although the queue had been paused for long")
        if runs_once(claim.path) and any(one.record for one in self.ledger.lives[claim.path] if one is not life):
            self.broken("P10", f"{claim.path} has run, and runs again because it was put again")
        if self.ledger.alike_since(life)[1] and claim.attempt > (claims := self.ledger.claims_of(life)):
            self.broken("P5", f"{claim.path} starts as attempt {claim.attempt}, and was claimed {claims} times")
        runs = life.runs.setdefault(line, [])
        runs.append(run)
        given_back = sum(one.ended == "postponed" for one in runs) + self.releases.counts[claim.path]
        if len(runs) > self.max_attempts * life.puts + given_back:
            self.broken("P5", f"{claim.path} line {line}: start {len(runs)} of at most {self.max_attempts}")
        return run


def _is_replay(call: Call | None, process: Process) -> bool:
    """Whether a request is part of a replay; who is on trial in the crash matrix replays, if anything, letters."""
    return call.name in ("replay", "edit") if call else process.name.startswith("subject")


def _is_first(lease: Lease) -> bool:
    """Whether this is a claim that follows nothing: who gives it back has nothing to keep, and deletes its lease."""
    return lease.state == "processing" and lease.attempt == 1 and not lease.attempts and not lease.lines


def _is_new_claim(former: Lease, lease: Lease) -> bool:
    """Whether this write of a lease begins an attempt; an extension or a heartbeat's successor does not."""
    known = former.generation.etag if former.generation else former.expected_etag
    named = lease.generation.etag if lease.generation else lease.expected_etag
    return former.state != "processing" or (bool(known) and known != named)
