"""RunManifest: what a run says about itself in the bucket, and its slot.  [P1] [P5]

The manifest names every message that the run holds, those that may have been started first, and what was started and
lost. Whoever finds the run dead, or one of its leases run out, fails these, and gives the others back. Every write is
conditional: a run that was given up learns it there.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from s3queue.documents.run_documents import Manifest
from s3queue.errors import Conflict
from s3queue.protocol.claim import Claim
from s3queue.queue import Queue
from s3queue.spark_runs.slots import RunStore

_log = logging.getLogger(__name__)
#: Endings after which the lease of the attempt is surely not the run's any more, or has its record beside it.
SETTLED = frozenset({"completed", "dead", "retried", "postponed", "cancelled"})
#: More than this many lost messages are not named: a manifest with all paths must be below its cap.
MOST_LOST = 1000


class NotOurs(Exception):
    """The run has another driver, or none any more: nothing was touched."""


class RunLost(Exception):
    """Someone judged this run dead: stop at once, and write nothing more about it."""


class RunManifest:
    """The manifest and the slot of one run, `queue.worker_id`. Its methods may be called by several threads."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._run = queue.worker_id
        self._book = RunStore(queue)
        self._mutex = threading.RLock()
        self._manifest: Manifest | None = None
        self._etag = ""
        self._job = ""
        #: What the manifest names and has not ended; and whether that is known of what the launcher has named.
        self._open: dict[str, Claim] = {}
        self._is_adopted = False
        #: What the manifest names as started, and whose outcome is known, or which certainly has not run.
        self._settled: set[str] = set()
        #: Whether the others gave this run up.
        self.is_lost = False
        self._has_failed_early = False
        #: The nonces of the write that is surely stored, and of those since, which had no answer and may be.
        self._ours: set[str] = set()
        self.counts: Counter[str] = Counter()

    @property
    def paths(self) -> tuple[str, ...]:
        return self._known().paths

    @property
    def unstarted(self) -> tuple[str, ...]:
        """The named messages that have certainly not been started."""
        manifest = self._known()
        return manifest.paths[manifest.started :]

    def take_over(self) -> None:
        """Become the driver of this run.

        Raises:
            NotOurs: another driver has, or had, this run.
        """
        found = self._book.manifest(self._run)
        if found is None:
            raise NotOurs(f"{self._run} has no manifest: it was given up before its driver started")
        manifest, etag = found
        if manifest.state != "launching":
            raise NotOurs(f"{self._run} is {manifest.state}: another driver has had it")
        held = self._book.slot(manifest.slot)
        if held is None or held.slot.run != self._run:
            raise NotOurs(f"{self._run} lost its slot before its driver started")
        self._job = held.slot.job
        try:
            # Nothing is lost yet: the manifest of an older launcher does not say so.
            self._manifest, self._etag = self._book.write_manifest(replace(manifest, state="running", lost=()), etag)
        except Conflict:
            raise NotOurs(f"{self._run} was taken over by another driver this very moment") from None
        self._ours = {self._manifest.nonce}
        _log.info("run takes messages over: %s: %s: %d", self._queue.name, self._run, len(manifest.paths))

    def adopted(self, claims: Sequence[Claim]) -> None:
        """These were named by the launcher, and are this driver's now."""
        with self._mutex:
            self._open |= {claim.path: claim for claim in claims}
            self._is_adopted = True
            if claims:
                # Written with the next change: it is only a count.
                self._manifest = replace(self._known(), rounds=self._known().rounds + 1)

    def name(self, claims: Sequence[Claim]) -> None:
        """Name newly claimed messages beside those that have not ended; only then may the heartbeat keep them.

        Raises:
            RunLost: the run is not ours any more.
        """
        with self._mutex:
            new = {claim.path: claim for claim in claims}
            # Their attempts before this one were charged, or were another message's: also if this write has no answer.
            self._settled |= new.keys()
            # A message may have failed, and been claimed anew, before the thread that ran it has said that it ended.
            started, waiting = ([path for path in paths if path not in new] for paths in self._named())
            self._write_paths(started, [*waiting, *new], rounds=self._known().rounds + 1)
            self._open |= new

    def begin(self, claims: Sequence[Claim]) -> None:
        """Say that these are started, before they are: after a crash, only what was started has had its attempt.

        Raises:
            RunLost: the run is not ours any more; start nothing.
        """
        with self._mutex:
            started, waiting = self._named()
            # Not a claim that ran out before it was started: the path may be claimed anew by now, and not be started.
            wanted = {claim.path for claim in claims if self._open.get(claim.path) is claim}
            begun = [path for path in waiting if path in wanted]
            if begun:
                self._write_paths([*started, *begun], [path for path in waiting if path not in wanted])

    def ended(self, claim: Claim, outcome: str, *, has_run: bool = True) -> None:
        """A message came to its end, as far as this run is concerned; without having run, though it may be begun."""
        with self._mutex:
            if self._open.get(claim.path) is claim:
                del self._open[claim.path]
                if outcome in SETTLED or not has_run:
                    self._settled.add(claim.path)
        self.count(outcome)

    def drop_ended(self) -> None:
        """Name what has ended no longer: if it has a lease yet, its outcome unknown, the heartbeat would keep that for
        as long as the run lives. So it would what a write without an answer names, if that is stored.

        Raises:
            RunLost: the run is not ours any more.
        """
        with self._mutex:
            is_unsure = len(self._ours) > 1
            if self._is_adopted and (is_unsure or not self._open.keys() >= set(self.paths)):
                self._write_paths(*self._named())

    def count(self, outcome: str) -> None:
        with self._mutex:
            self.counts[outcome] += 1

    def progressed(self) -> None:
        """Say how far the run is. Raises RunLost if it is not ours any more."""
        with self._mutex:
            self._write_paths(*self._named())

    def close(self) -> None:
        """Nothing is held any more: free the slot. Raises RunLost if the run is not ours any more."""
        manifest = self._known()
        held = self._book.slot(manifest.slot)
        # The launcher may have learnt the job's id after this driver had started.
        self._job = held.slot.job if held and held.slot.run == self._run else self._job
        self._open.clear()
        self._write_paths((), (), state="closed")
        self.free_slot()
        _log.info(
            "run closes: %s: %s after %d rounds: %s", self._queue.name, self._run, manifest.rounds, dict(self.counts)
        )

    def reopen(self) -> bool:
        """Take the slot again for what came late; False if someone else has: they do it."""
        manifest = self._known()
        try:
            held = self._book.open_slot(manifest.slot, self._run)
            self._book.write_slot(held, state="started", job=self._job)
        except Conflict:
            return False
        self._write(state="running")
        return True

    def fail(self, error: BaseException) -> None:
        """Say why the run gives up. Raises RunLost if it is not ours any more."""
        self._has_failed_early = self._known().is_unstarted
        self._write(state="failed", note=repr(error)[:500])

    def free_slot(self) -> None:
        """Free the slot; if the run has failed before it had started a message, nobody launches another for a while."""
        manifest = self._known()
        if self._has_failed_early:
            self._book.cool_slot(manifest.slot, self._run, manifest.note)
        else:
            self._book.free_slot(manifest.slot, self._run)

    def _known(self) -> Manifest:
        assert self._manifest is not None
        return self._manifest

    def _named(self) -> tuple[list[str], list[str]]:
        """What the manifest names and has not ended: what may have been started, and what has not."""
        manifest = self._known()
        started, waiting = manifest.paths[: manifest.started], manifest.paths[manifest.started :]
        return [path for path in started if path in self._open], [path for path in waiting if path in self._open]

    def _write_paths(self, started: Sequence[str], waiting: Sequence[str], **changes: Any) -> None:
        with self._mutex:
            paths = (*started, *waiting)
            self._write(paths=paths, started=len(started), lost=self._lost(set(paths)), **changes)
            self._settled.intersection_update(started)

    def _lost(self, named: set[str]) -> tuple[str, ...] | None:
        """What was started, and is not among what is `named` from now on, without an outcome that is known."""
        manifest = self._known()
        if manifest.lost is None:
            return None
        may_be_lost = dict.fromkeys((*manifest.lost, *manifest.paths[: manifest.started]))
        lost = tuple(path for path in may_be_lost if path not in named and path not in self._settled)
        return lost if len(lost) <= MOST_LOST else None

    def _write(self, **changes: Any) -> None:
        with self._mutex:
            changed = replace(self._known(), counts=dict(self.counts), **changes)
            try:
                try:
                    self._put(changed)
                except Conflict:
                    if not self._read_again():
                        raise
                    # Nothing else of ours comes now: what has had no answer had the precondition that failed here.
                    self._put(changed)
            except Conflict as conflict:
                self.is_lost = True
                raise RunLost(f"{self._run}: {conflict}") from conflict

    def _put(self, changed: Manifest) -> None:
        changed = replace(changed, nonce=self._queue.chance.token())
        self._ours.add(changed.nonce)
        self._manifest, self._etag = self._book.put_manifest(changed, self._etag)
        self._ours = {changed.nonce}

    def _read_again(self) -> bool:
        """Go on from what is stored, if that is our own; whether it is. A write without an answer may be stored at any
        time until another one is.
        """
        found = self._book.manifest(self._run)
        if found is None or found[0].nonce not in self._ours:
            return False
        self._etag = found[1]
        return True
