"""Planted bugs: single-line mutations of the real code, each of which the simulation or the crash matrix must catch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "functions"
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Mutation:
    """`old` occurs exactly once in `module`, and becomes `new`."""

    name: str
    module: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Catch:
    """Who caught a mutation, as which broken promise, and what it took. `by` is empty if nobody did."""

    mutation: str
    by: str
    what: str
    schedules: int
    seconds: float


MUTATIONS = (
    Mutation(
        "the heartbeat keeps its pace when the visibility timeout is lowered",
        "protocol/liveness.py",
        "due = min([self._beat_at + ttl.total_seconds() / BEATS, *map(self._due, leases)])",
        "due = self._beat_at + self._queue.defined.visibility_timeout.total_seconds() / BEATS",
    ),
    Mutation(
        "the clock stands still in a freeze",
        "clock.py",
        "elif lead - self._lead > TOLERANCE_SECONDS:",
        "elif not self._wall:",
    ),
    Mutation(
        "the lease is deleted before the message",
        "protocol/outcomes.py",
        "        deleted = self._delete_message(path, generation, is_alive, is_repeated)\n",
        "        delete_unique(self.store, self.keys.lease(path), if_match=lease_etag)\n"
        "        deleted = self._delete_message(path, generation, is_alive, is_repeated)\n",
    ),
    Mutation(
        "leases carry no nonce",
        "protocol/lease_protocol.py",
        "lease = replace(lease, nonce=self.queue.chance.token())",
        'lease = replace(lease, nonce="")',
    ),
    Mutation(
        "the completion is not conditional",
        "protocol/outcomes.py",
        "put_surely(self.store, key, body, if_absent=True)",
        "self.store.put(key, body)",
    ),
    Mutation(
        "the sweeper skips the record check",
        "protocol/expire.py",
        "    record = leases.outcomes.read(path)",
        "    record = None",
    ),
    Mutation(
        "a retry skips the record check",
        "protocol/claiming.py",
        "record = None if is_first else self.leases.outcomes.read(path)",
        "record = None",
    ),
    Mutation(
        "a release forgets the attempts before it",
        "protocol/lease_protocol.py",
        'state="waiting", attempt=lease.attempt - 1, retry_at=retry_at)',
        'state="waiting", attempt=0, retry_at=retry_at)',
    ),
    Mutation(
        "a release burns an attempt",
        "protocol/lease_protocol.py",
        'state="waiting", attempt=lease.attempt - 1, retry_at=retry_at)',
        'state="waiting", attempt=lease.attempt, retry_at=retry_at)',
    ),
    Mutation("a 409 is taken as lost", "errors.py", "class Contended(Unavailable):", "class Contended(Conflict):"),
    Mutation(
        "a zombie's failure counts",
        "protocol/lease_protocol.py",
        'raise LeaseLost(f"{self.queue.name}/{claim.path}: {conflict}") from conflict',
        "return",
    ),
    Mutation(
        "a claim takes what is taken", "protocol/lease_protocol.py", "if_absent=if_match is None)", "if_absent=False)"
    ),
    Mutation(
        "lease writes do not look whose lease it is",
        "protocol/lease_protocol.py",
        "lease.to_bytes(), if_match=if_match, if_absent",
        "lease.to_bytes(), if_match=None, if_absent",
    ),
    Mutation(
        "the sweeper ignores heartbeats",
        "sweeper/expired_leases.py",
        "elif owners.keep(",
        "elif not owners and owners.keep(",
    ),
    Mutation(
        "the sweeper believes a heartbeat that it read too early",
        "protocol/liveness.py",
        "if owner not in self._held or (over_at and (read_at is None or read_at < over_at)):",
        "if owner not in self._held:",
    ),
    Mutation(
        "heartbeats name nothing",
        "protocol/liveness.py",
        "holds=() if self._run else tuple(claim.path for claim in claims)",
        "holds=()",
    ),
    Mutation(
        "a late heartbeat revives a lease",
        "protocol/liveness.py",
        "                if self._is_held(one.claim) and one.claim.is_alive():\n",
        "                if self._is_held(one.claim):\n",
    ),
    Mutation(
        "the deadline counts from the answer",
        "protocol/claiming.py",
        "            deadline=before + lease.timeout.total_seconds(),\n            clock=self.queue.clock",
        "            deadline=self.queue.clock.monotonic() + lease.timeout.total_seconds(),\n"
        "            clock=self.queue.clock",
    ),
    Mutation(
        "an extension counts from the answer",
        "protocol/lease_protocol.py",
        "claim.deadline = before + lease.timeout.total_seconds()",
        "claim.deadline = self.queue.clock.monotonic() + lease.timeout.total_seconds()",
    ),
    Mutation(
        "handlers start on a lease that is over",
        "protocol/claim.py",
        "        if not self.is_alive():\n",
        "        if not self.message:\n",
    ),
    Mutation(
        "a lease's age is judged by the sweeper's wall clock",
        "sweeper/expired_leases.py",
        "elif not held.is_over():",
        "elif self.queue.clock.now() <= held.over_at:",
    ),
    Mutation(
        "leases run out early", "documents/lease.py", "GRAIN = timedelta(seconds=2)", "GRAIN = timedelta(seconds=-2)"
    ),
    Mutation(
        "a burial takes no burying lease",
        "protocol/lease_protocol.py",
        'self.write(claim, replace(claim.lease, state="burying", failure=failure, attempts=attempts, lines=lines))',
        "claim.lease = replace(claim.lease, failure=failure, attempts=attempts, lines=lines)",
    ),
    Mutation(
        "the dead letter is not copied",
        "protocol/outcomes.py",
        "is_moved = self.move_to_dead(written, message, lines)",
        "is_moved = True",
    ),
    Mutation(
        "the sweeper does not redo the copy",
        "protocol/lease_protocol.py",
        "self.outcomes.move_to_dead(record, self._stored(claim), claim.lease.lines)",
        "_ = record",
    ),
    Mutation(
        "what was completed meanwhile is buried all the same",
        "protocol/outcomes.py",
        'and (written.outcome == "dead" or written.dead_lines)',
        "and written",
    ),
    Mutation(
        "the message's delete is not conditional",
        "store.py",
        "store.delete(key, if_match=etag)",
        "store.delete(key)",
    ),
    Mutation(
        "a delete without an answer is repeated blindly",
        "store.py",
        "        found = store.head(key)\n        if found is None:\n            return True\n",
        "        continue\n",
    ),
    Mutation(
        "a zombie clears away",
        "protocol/lease_protocol.py",
        "        if claim.is_alive():\n            is_repeated",
        "        if claim:\n            is_repeated",
    ),
    Mutation(
        "a re-PUT keeps the old attempts",
        "protocol/claiming.py",
        "if expected and expected != message.generation.etag:",
        "if expected and not message:",
    ),
    Mutation(
        "the sweeper charges a re-PUT with the old attempts",
        "protocol/expire.py",
        "    if _is_another(held, generation):",
        "    if not generation:",
    ),
    Mutation(
        "outcomes compare bytes only, not generations",
        "protocol/outcomes.py",
        "if stored and stored.generation == record.generation:",
        "if stored and stored.generation.etag == record.generation.etag:",
    ),
    Mutation(
        "a newer record is replaced by an older one's",
        "protocol/outcomes.py",
        "if stored and not is_alive() and self._is_superseded(record):",
        "if not stored:",
    ),
    Mutation(
        "S3's dates decide which of two generations is newer",
        "protocol/outcomes.py",
        "if stored and not is_alive() and self._is_superseded(record):",
        "if stored and stored.generation.put_at > record.generation.put_at:",
    ),
    Mutation(
        "a re-PUT is charged with the attempt of a worker that died at once",
        "protocol/expire.py",
        "    if lease.expected_etag:\n        return lease.expected_etag != generation.etag\n",
        "    if lease.expected_etag:\n        return False\n",
    ),
    Mutation(
        "the next death under a name overwrites its dead letter",
        "protocol/outcomes.py",
        'return None if is_letter_of(found, generation) else f"{key}~{generation_mark(generation)}"',
        "return None if is_letter_of(found, generation) else key",
    ),
    Mutation(
        "dead lines that did not run are forgotten",
        "protocol/outcomes.py",
        "                if number not in lines.done:\n",
        "                if number in lines.dead:\n",
    ),
    Mutation(
        "a replayed batch of dead lines runs the letter's own lines",
        "documents/dead_letter.py",
        "yield number, dead.body if dead else line",
        "yield number, line",
    ),
    Mutation(
        "a 412 after the SDK's own retry is believed",
        "store.py",
        "            if unknown is None and not conflict.retried:\n",
        "            if conflict:\n",
    ),
    Mutation(
        "a failure writes no waiting lease",
        "protocol/lease_protocol.py",
        "self.write(claim, replace(waiting, lines=claim.progressed()))",
        "claim.lease = waiting",
    ),
    Mutation(
        "a batch forgets which lines are done",
        "documents/batch.py",
        'done=LineNumbers.from_json(found.get("done", [])),',
        "done=LineNumbers(),",
    ),
    Mutation(
        "no record is written",
        "protocol/lease_protocol.py",
        "        if self.queue.settings.history:\n            record",
        "        if not self.queue.settings:\n            record",
    ),
    Mutation(
        "the sweeper rescues nobody",
        "sweeper/unleased_messages.py",
        "report.orphans += self._hand_over.once(orphans)",
        "_ = orphans",
    ),
    Mutation(
        "a waiting lease without a reminder is forgotten",
        "sweeper/expired_leases.py",
        "                due.append(path)\n",
        "                pass\n",
    ),
    Mutation(
        "what could not be read hides what was PUT there since",
        "sweeper/expired_leases.py",
        "elif path in self._present and not held.lease.waits_for(self._present.pop(path)):",
        "elif not held.lease:",
    ),
    Mutation(
        "delayed messages that wait hide the others",
        "protocol/backlog.py",
        "queue.store.list(prefix), prefix, leases, due_by=root.at)",
        "queue.store.list(prefix), prefix, None, due_by=root.at)",
    ),
    Mutation(
        "reminders of what is finished hide the others",
        "protocol/backlog.py",
        "self._misses + (not is_hint)",
        "self._misses + 1",
    ),
    Mutation(
        "a replay deletes the letter of the next death",
        "protocol/dead_letters.py",
        "if found is None or (found.modified_at, found.metadata) != (letter.modified_at, letter.metadata):",
        "if found is None:",
    ),
    Mutation(
        "a replay deletes before it copies",
        "protocol/dead_letters.py",
        "        if self._is_finished_since(target, found):\n",
        "        self.queue.store.delete(found.key, if_match=found.etag)\n"
        "        if self._is_finished_since(target, found):\n",
    ),
    Mutation(
        "a lock is deleted while it is held",
        "sweeper/cleanup.py",
        " and age > found.ttl + GRAIN:",
        ":",
    ),
    Mutation(
        "dispatches are limited per page, not per sweep",
        "sweeper/hand_over.py",
        "            self._left = max(0, self._left - len(chunk))\n",
        "",
    ),
    Mutation(
        "a new sweeper forgets where the last one ended",
        "sweeper/sweeper.py",
        "self._progress or Progress.read(queue, store, root)",
        "self._progress or Progress()",
    ),
    Mutation(
        "the first step of a sweep may use up its budget",
        "sweeper/budget.py",
        "max(0, self._requests - self.spent) // steps_left)",
        "max(0, self._requests - self.spent) // 1)",
    ),
    Mutation(
        "the page of messages that the budget ended is read again",
        "sweeper/expired_leases.py",
        'in listing(report.budget.store, keys.prefix("leases"), after=before):',
        'in report.budget.pages(keys.prefix("leases"), before[:-2]):',
    ),
    Mutation(
        "strangers under the root hide the queue",
        "protocol/stats.py",
        "    if root.next_after is not None:\n",
        "    if root is None:\n",
    ),
    Mutation(
        "an expired lease waits for its backoff",
        "protocol/expire.py",
        "leases.fail(claim, failure, retry_after=-1.0)",
        "leases.fail(claim, failure, retry_after=5.0)",
    ),
    Mutation(
        "leases are listed by whole sweeps only",
        "sweeper/sweeper.py",
        '(self._is_turn_of_leases and "leases" in self._kinds)',
        "False",
    ),
    Mutation(
        "the sweeper does not wake up when a lease ends",
        "sweeper/sweeper.py",
        "if next_at := self._expired_leases.next_at():",
        "if next_at := None:",
    ),
    Mutation(
        "one lease that cannot be read stops the others",
        "sweeper/expired_leases.py",
        "            except QueueError as error:\n                # Unknown, or not allowed",
        "            except QueueError:\n                raise\n            except Conflict as error:\n"
        "                # Unknown, or not allowed",
    ),
)


def plant(mutation: Mutation, into: Path) -> None:
    """A copy of the library with one bug.

    Raises:
        ValueError: the source no longer has this line: correct the mutation.
    """
    shutil.copytree(SOURCE / "s3queue", into / "s3queue", ignore=shutil.ignore_patterns("__pycache__"))
    module = into / "s3queue" / mutation.module
    source = module.read_text()
    if source.count(mutation.old) != 1:
        raise ValueError(
            f"{mutation.name!r}: its text occurs {source.count(mutation.old)} times in {mutation.module}, not once"
        )
    module.write_text(source.replace(mutation.old, mutation.new))


def hunt(mutation: Mutation, seconds: float = 60.0) -> Catch:
    """Run the crash matrix and the schedules over the planted bug until something catches it."""
    with tempfile.TemporaryDirectory() as scratch:
        plant(mutation, Path(scratch))
        environment = {**os.environ, "PYTHONPATH": f"{scratch}{os.pathsep}{TESTS}"}
        command = [sys.executable, "-m", "simulation.hunt", str(seconds)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutation.name!r}: the hunt itself failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    return Catch(mutation.name, found["by"], found["what"], found["schedules"], found["seconds"])
