"""Partitions, as the judge sees them.  [P9]

The lease of a partition is the commit point, so an outcome counts from the instant when the lease names it; journals,
letters and deletions only follow from that. What is judged of the order of a group, precisely:

A message of a group starts only while its starter holds the lease by its own clock, and only if every message of a
smaller name that lay there when the holder last asked for a LIST has an outcome, or is ended by this very holder, whose
next commit says so. A handler may still run after the lease of its starter ran out: only such a zombie overlaps with
another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from s3queue.documents.lease import NEVER
from s3queue.documents.message import MOVED, Generation
from s3queue.documents.partition import PartitionLease, Waiting
from s3queue.documents.record import Record
from s3queue.flow import partition_hold, partition_window, read_ahead
from s3queue.flow.held_leases import HeldLeases
from s3queue.flow.partition_window import PartitionWindow
from s3queue.paths import is_ordered, partition_of
from s3queue.protocol.claim import Claim

from .journals import Journals, object_of
from .ledger import Life, Run
from .machines import Process
from .world import World

if TYPE_CHECKING:
    from .history import Call
    from .judge import Judge

#: Messages that are taken together: few, so that a handful of messages needs several commits.
WINDOW = 3
#: Messages after which it is worth looking for more before a partition is given up; in every third schedule, as it is.
FEW = 2
#: As long ago as this a message may have been read when its handler starts: long enough for much to happen meanwhile.
FRESH_SECONDS = 5.0

#: The windows of this run, and when the last LIST of each was asked for.
_looked: dict[int, tuple[PartitionWindow, float]] = {}


@contextmanager
def small_windows(world: World) -> Iterator[None]:
    """Few messages in each, and the judge knows when each was looked at: a process has several threads."""
    look = partition_window.PartitionWindow.look

    def noted(window: PartitionWindow, *beside: Any) -> None:
        began_at = world.now
        look(window, *beside)
        _looked[id(window)] = window, began_at

    _looked.clear()
    with (
        patch.object(partition_window, "WINDOW", WINDOW),
        patch.object(partition_hold, "FEW", FEW if world.seed % 3 else partition_hold.FEW),
        patch.object(partition_window.PartitionWindow, "look", noted),
        # Whatever handlers and GETs take here; every fourth schedule reads nothing early.
        patch.object(read_ahead, "QUICK_SECONDS", float("inf")),
        patch.object(read_ahead, "SLOW_GET_SECONDS", float("inf") if world.seed // 40 % 4 == 3 else 0.0),
        patch.object(read_ahead, "FRESH_SECONDS", FRESH_SECONDS),
    ):
        yield


@dataclass(slots=True, eq=False)
class _Held:
    """A partition that somebody holds, or held: the claim of the whole partition, and what was started under it."""

    process: Process
    owner: str
    claim: Claim
    #: (message that was started, message of a smaller name that had no outcome then)
    out_of_turn: list[tuple[Life, Life]] = field(default_factory=list)


class Partitions:
    """Watches the leases, the journals and the handlers of the partitions of one queue."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._world = judge.world
        self._root = judge.root
        self._ledger = judge.ledger
        #: Partition → whoever started a handler in it, the last one last.
        self._held: dict[str, list[_Held]] = {}
        self._running: dict[str, list[tuple[Run, _Held]]] = {}
        #: Lives that were taken beside others when their worker died: one start more.
        self._excused: set[Life] = set()
        #: How many outcomes were committed for each life.
        self._outcomes: dict[Life, int] = {}
        #: Every lease that was written: key and bytes.
        self._written: set[tuple[str, bytes]] = set()
        self.journals = Journals(judge, self._outcomes)
        #: Path of a replay → when the first one asked for it: then this was the end of its group.
        self._placed: dict[str, float] = {}
        #: Path and ETag of what was taken when it had been deleted by hand since the LIST.
        self._taken_gone: set[tuple[str, str]] = set()

    def lease_key(self, path: str) -> str:
        partition = partition_of(path)
        return f"{self._root}leases/{partition or path}"

    def is_at_work(self, path: str, before: Any) -> bool:
        """Whether equal bytes that are PUT now may be taken for what is at work: the lease of a partition stays for
        longer than that, so its message must lie there, or have been deleted by hand.
        """
        is_gone = before is None and not any(life.end == "removed" for life in self._ledger.lives.get(path, ()))
        return self.lease_key(path) in self._world.objects and not (partition_of(path) and is_gone)

    def is_named(self, path: str) -> bool:
        """Whether the lease that lies there leads to this message: it is its own, or its partition's names it."""
        if not partition_of(path):
            return True
        lease = _lease(self._world.objects.get(self.lease_key(path)), self.lease_key(path))
        return lease is not None and (path in lease.taken or path in {record.path for record in lease.ended})

    def is_waiting(self, life: Life) -> bool:
        """Whether the lease of its partition names it as one that failed: its holder has to record that it is gone."""
        if not partition_of(life.path):
            return False
        lease = _lease(self._world.objects.get(self.lease_key(life.path)), self.lease_key(life.path))
        known = lease.waiting.get(life.path) if lease else None
        if known is None or not known.lease.attempt or known.lease.is_cancelling or known.retry_at == NEVER:
            return False
        # Exactly: equal bytes that were PUT in its place pass for it, and are recorded with its date.
        return known.lease.generation == Generation(etag=life.etag, put_at=life.put_at)

    def performed(self, process: Process, key: str, sent_at: float, before: Any, after: Any) -> bool:
        """Whether it was the lease or the journal of a partition, and is judged here alone."""
        kind, _, rest = key.removeprefix(self._root).partition("/")
        if kind == "leases" and rest.startswith("@"):
            leased_at = self._judge.leased_at.get(before.etag, 0.0) if before else 0.0
            is_repeated = after is not None and (key, after.body) in self._written
            if after is not None:
                self._written.add((key, after.body))
                self._judge.leased_at[after.etag] = self._world.now
            self._leased(process, rest, _lease(before, key), _lease(after, key), leased_at, is_repeated=is_repeated)
            return True
        if kind == "records" and rest.startswith("@"):
            self.journals.write(key, before, after)
            return True
        if kind == "messages" and after is None and partition_of(f"messages/{rest}"):
            call = self._judge.history.asked(process, sent_at)
            life = self._ledger.present[f"messages/{rest}"]
            if not (call and call.name in ("remove", "purge")) and not self._judge.is_overtaken(life, sent_at):
                self.journals.deleted(life)
        return False

    # The lease

    def _leased(
        self,
        process: Process,
        partition: str,
        before: PartitionLease | None,
        after: PartitionLease | None,
        leased_at: float,
        *,
        is_repeated: bool,
    ) -> None:
        """`leased_at`: when `before` was written. `is_repeated`: a lease of these very bytes was written before. Two
        PUTs without an answer may land after it was deleted: the first writes it anew, so the second finds its ETag.
        What it commits was committed then.
        """
        if before and before.state == "processing":
            self._check_alone(process, partition, before.owner, after)
        for record in after.ended if after else ():
            if not is_repeated and not (before and record in before.ended):
                self._commit(process, record, after)
        for record in before.ended if before else ():
            if not after or record not in after.ended:
                self._check_cleared(record, after)
        is_taken_over = bool(before and after and before.state == "processing" and before.owner != after.owner)
        for path, waiting in before.waiting.items() if before else ():
            self._check_waiting(path, waiting, after)
        if before and after:
            self._check_charges(before, after, leased_at, is_taken_over=is_taken_over)
        if after and len(after.taken) > 1 and self._judge.max_attempts == 1:
            self._judge.broken("P5", f"{partition}: several are taken, and each may start once: whose was the death?")
        is_commit = not (before and after and _is_renewal(before, after))
        for path, etag in after.taken.items() if after and is_commit else ():
            self._ledger.claimed[path].append(self._judge.world.now)
            life = self._ledger.present.get(path)
            if life is None:
                self._taken_gone.add((path, etag))
            elif life.etag == etag:
                life.claims += 1
        for held in self._held.get(partition, ()):
            if not held.claim.is_alive():
                held.out_of_turn.clear()  # nothing of it counts, and it begins anew
            elif held.process is process and is_commit:
                self._check_turns(held)

    def _check_alone(self, process: Process, partition: str, owner: str, after: PartitionLease | None) -> None:
        """[P2] Whoever believes, by his own clock, that he holds a partition is the one whose lease lies there."""
        for held in self._held.get(partition, ()):
            is_other = held.process is not process or (after is not None and after.owner != held.owner)
            if held.owner == owner and is_other and held.process.is_alive and held.claim.is_alive():
                self._judge.broken("P2", f"{held.process.name} still holds {partition}, and {process.name} took it")

    def _commit(self, process: Process, record: Record, lease: PartitionLease | None) -> None:
        generation = record.generation
        life = self._ledger.find(record.path, generation.etag, generation.put_at)
        if life is None:
            self._judge.broken("unexpected", f"an outcome of {record.path} for a generation that never was")
            return
        self._outcomes[life] = self._outcomes.get(life, 0) + 1
        if self._outcomes[life] > life.puts:
            self._judge.broken("P3", f"{record.path} was ended, and is committed again as {record.outcome}")
        if lease and record.worker != lease.owner:
            self._judge.broken("P9", f"{lease.owner} commits what {record.worker} did with {record.path}")
        twins = [one for one in self._ledger.of_group(life) if one is not life and one in self._outcomes]
        if record.put_id.startswith(MOVED) and any(one.record and one.record.put_id == record.put_id for one in twins):
            self._judge.broken("P4", f"{record.path} was replayed, ended under another name, and is ended again")
        if record.outcome == "completed":
            mine = [run for run in life.runs.get(0, ()) if run.process is process]
            if not any(run.ended == "ok" for run in mine):
                self._judge.broken("P1", f"{record.path} is committed as completed, and no handler of its worker was")
        former = life.record and life.recorded_at
        self._judge.settle(life, record)
        if former:
            life.recorded_at = former  # S3 cannot tell its PUTs apart, and neither can its letter

    def _check_cleared(self, record: Record, after: PartitionLease | None) -> None:
        """[P1] [P6] The lease keeps an outcome until its message is gone: nobody else would know of it."""
        life = self._find(record)
        if life is None or life.puts > 1:
            return
        if self._ledger.present.get(record.path) is life and (after is None or record.path not in after.waiting):
            self._judge.broken("P6", f"{record.path} has an outcome, its lease forgot that, and it still lies there")
        if self.journals.lacks(record):
            self._judge.broken("P1", f"the outcome of {record.path} is in no journal, and its lease forgot it")

    def _check_waiting(self, path: str, waiting: Waiting, after: PartitionLease | None) -> None:
        """[P5] The attempts of a message are known until it has an outcome, is gone, or its name was PUT anew."""
        life = self._ledger.present.get(path)
        if life is None or life.record or not waiting.is_for(Generation(etag=life.etag, put_at=life.put_at)):
            return
        if any(one.record for one in self._ledger.alike(life)) or self._judge.dedup.is_repeated(life, life.put_id):
            return
        kept = after.waiting.get(path) if after else None
        if kept is None or kept.lease.attempt < waiting.lease.attempt or kept.is_suspect < waiting.is_suspect:
            self._judge.broken("P5", f"{path} had {waiting.lease.attempt} attempts, and its lease forgot them")

    def _check_charges(
        self, before: PartitionLease, after: PartitionLease, leased_at: float, *, is_taken_over: bool
    ) -> None:
        """[P5] A message is charged with the death of a worker that had only this one, and with no other."""
        ended = {record.path: record.generation.etag for record in before.ended}
        for path, etag in before.taken.items():
            former, now = before.waiting.get(path), after.waiting.get(path)
            life = self._ledger.present.get(path)
            if life is None or life.etag != etag or ended.get(path) == etag:
                continue
            tried = former.lease.attempt if former and former.lease.leased_etag == etag else 0
            if now and now.is_suspect and not (former and former.is_suspect) and len(before.taken) > 1:
                self._excused.add(life)
            if is_taken_over:
                charged = now.lease.attempt if now else 0
                if len(before.taken) > 1 and charged != tried:
                    self._judge.broken("P5", f"{path} is charged with a death that may be another's")
                # Equal bytes that came since the lease was written may have come behind the LIST.
                is_other = life.began_at > leased_at and not charged
                if len(before.taken) == 1 and charged != tried + 1 and not is_other:
                    self._judge.broken("P5", f"{path} is not charged with the death of its worker")

    def _check_turns(self, held: _Held) -> None:
        """[P9] What had to end before another one started has ended."""
        for life, smaller in held.out_of_turn:
            alike = (one for one in self._ledger.alike(smaller) if one.record)
            is_same = any(one.recorded_at >= smaller.last_put_at for one in alike)
            is_repeated = self._judge.dedup.is_repeated(smaller, smaller.put_id)
            if not (smaller.record or smaller.end or is_same or is_repeated):
                self._judge.broken("P9", f"{life.path} started while {smaller.path}, which comes first, had no outcome")
        held.out_of_turn.clear()

    # Messages

    def put(self, life: Life) -> None:
        """A message is PUT. Whoever took one of these bytes there may start it, though that was deleted by hand."""
        if (life.path, life.etag) not in self._taken_gone:
            return
        lease = _lease(self._world.objects.get(self.lease_key(life.path)), self.lease_key(life.path))
        if lease and lease.taken.get(life.path) == life.etag:
            self._taken_gone.discard((life.path, life.etag))
            life.claims += 1

    def placed(self, call: Call | None, path: str) -> None:
        """A marker says where a replay goes."""
        if call and call.name in ("replay", "rerun", "edit"):
            self._placed.setdefault(path, call.invoked_at)

    def replayed(self, call: Call, life: Life) -> None:
        """[P9] A replay goes behind everything that its group had when it was first asked for, under its own name."""
        partition = partition_of(life.path)
        if not partition or not is_ordered(partition):
            return
        if any(one.put_id != life.put_id for one in self._ledger.lives[life.path]):
            self._judge.broken("P9", f"a replay goes into its group as {life.path}, which was there before")
        for path, other in self._ledger.present.items():
            is_behind = partition_of(path) == partition and path.encode() > life.path.encode()
            if is_behind and other.last_put_at < min(call.invoked_at, self._placed.get(life.path, call.invoked_at)):
                self._judge.broken("P9", f"the replay {life.path} goes before {path}, which was there")

    def _find(self, record: Record) -> Life | None:
        return self._ledger.find(record.path, record.generation.etag, record.generation.put_at)

    # Handlers

    def start(self, process: Process, claim: Claim, run: Run) -> Run:
        """A handler starts; `claim.within` is the partition's."""
        judge, world = self._judge, self._world
        world.note(process, "run", claim.path, f"attempt {claim.attempt}")
        generation, partition = claim.message.generation, partition_of(claim.path)
        life = self._ledger.find(claim.path, generation.etag, generation.put_at)
        if life is None:
            judge.broken("unexpected", f"a handler runs {claim.path}, a generation that never was")
            return run
        if not claim.is_alive():
            judge.broken("P4", f"{process.name} starts a handler for {claim.path} after its own deadline")
        key = self.lease_key(claim.path)
        lease = _lease(world.objects.get(key), key)
        if lease is None or lease.owner != claim.lease.owner or lease.state != "processing":
            judge.broken("P2", f"{process.name} runs {claim.path} without holding its partition")
        elif lease.taken.get(claim.path) != generation.etag:
            judge.broken("P9", f"{claim.path} runs, and the lease of its partition does not name it")
        if life.record and life.puts == 1:
            judge.broken("P4", f"{claim.path} runs again after its outcome was committed")
        if life.is_repeated and life.body not in judge.history.replayed:
            judge.broken("P7", f"{claim.path} was finished, sent again, and runs a second time")
        # The lease is the commit point, so its holder knows what is ended.
        judge.dedup.check_start(life, claim.message.put_id, world.now)
        held = self._hold(process, claim)
        if is_ordered(partition):
            self._check_overlap(partition, life, held)
            self._check_order(claim, life, held)
            self._check_chain(life, held)
        self._running.setdefault(partition, []).append((run, held))
        self._count(life, claim, run)
        return run

    def _count(self, life: Life, claim: Claim, run: Run) -> None:
        """[P5] One start more if a worker died while it held several: then nobody knows of which it died."""
        runs = life.runs.setdefault(0, [])
        runs.append(run)
        postponed = sum(one.ended == "postponed" for one in runs)
        most = self._judge.max_attempts * life.puts + (life in self._excused)
        if len(runs) > most + postponed:
            self._judge.broken("P5", f"{claim.path}: start {len(runs)} of at most {most}")

    def _hold(self, process: Process, claim: Claim) -> _Held:
        assert claim.within
        holders = self._held.setdefault(partition_of(claim.path), [])
        for held in holders:
            if held.claim is claim.within:
                return held
        held = _Held(process, claim.lease.owner, claim.within)
        holders.append(held)
        return held

    def _check_overlap(self, partition: str, life: Life, held: _Held) -> None:
        """[P9] Of a group, one handler runs at a time, but for those whose lease has run out."""
        self._running[partition] = [
            (run, one) for run, one in self._running.get(partition, ()) if not run.ended_at and run.process.is_alive
        ]
        for run, one in self._running[partition]:
            if one is held or one.claim.is_alive():
                self._judge.broken("P9", f"{life.path} starts while {run.process.name} runs another of its group")

    def _check_order(self, claim: Claim, life: Life, held: _Held) -> None:
        assert isinstance(claim.leases, HeldLeases)
        _, looked_at = _looked.get(id(claim.leases.hold.messages), (None, 0.0))
        for path, smaller in self._ledger.present.items():
            is_before = partition_of(path) == partition_of(life.path) and path.encode() < life.path.encode()
            if is_before and smaller.last_put_at < looked_at and not smaller.record:
                held.out_of_turn.append((life, smaller))

    def _check_chain(self, life: Life, held: _Held) -> None:
        """[P9] What was sent to a group keeps the order of the sends, and of the senders, over any number of groups."""
        for earlier in self._judge.sends.before(life):
            if not isinstance(earlier, Life):
                self._judge.broken("P9", f"{life.path} starts, and what was sent before it is nowhere: {earlier}")
            elif not (earlier.record or earlier.end):
                held.out_of_turn.append((life, earlier))


def _is_renewal(before: PartitionLease, after: PartitionLease) -> bool:
    """Whether nothing but the age of the lease has changed."""
    return replace(after, nonce=before.nonce, timeout=before.timeout) == before


def _lease(stored: Any, key: str) -> PartitionLease | None:
    return PartitionLease.read(object_of(stored, key)) if stored else None
