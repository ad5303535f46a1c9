"""What must be true once everything is quiet, and the table that sums a run up."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

from s3queue.documents.lease import NEVER, Lease
from s3queue.paths import name_of

from .cast import Cast
from .fired import check_schedules, unfired
from .judge import STRAY, Judge
from .ledger import Life, Run
from .letters import replay_of
from .world import World

#: What only exists while something is at work or waits.
PASSING = ("messages", "delayed", "leases", "retries", "flows")
#: The columns of the proof's table; the runs beyond the first follow, by reason.
COLUMNS = (
    "enqueued",
    "completed",
    "dead",
    "cancelled",
    "lost",
    "unexpected",
    "duplicate outcomes",
    "double live leases",
)
REASONS = ("retry", "expired lease", "zombie", "batch re-run")
_COLUMN_OF = {
    "lost": "lost",
    "unexpected": "unexpected",
    "duplicate outcome": "duplicate outcomes",
    "double live lease": "double live leases",
}


def leftovers(world: World) -> list[str]:
    """What is still at work or waits, in every queue."""
    passing = [key for key in world.objects if key.split("/", 2)[1] in PASSING and STRAY not in key]
    return [key for key in passing if not (_is_early(world, key) or _is_parked(world, key))] + unfired(world)


def _is_early(world: World, key: str) -> bool:
    """Whether this is the marker of a flow whose starter died before there was one: it is kept for a day."""
    _, kind, flow_id = key.split("/", 2)
    return kind == "flows" and f"flows/{flow_id}/flow.json" not in world.objects


def _is_parked(world: World, key: str) -> bool:
    """Whether nobody can read it, and it is dead: it stays where it is, with the lease that keeps workers off."""
    queue, _, path = key.partition("/")
    path = path.removeprefix("leases/")
    if f"{queue}/{path}" not in world.store.refused:
        return False
    stored = world.objects.get(f"{queue}/leases/{path}")
    return stored is not None and Lease.from_bytes(stored.body, key).retry_at == NEVER


def check_quiet(world: World, judge: Judge, cast: Cast) -> None:
    """[P1] [P6] Nothing is left behind, and everything has an outcome, by the sweeper and the workers alone."""
    if judge.violations:
        return  # the schedule was cut short there; what is left over says nothing more
    for key in leftovers(world):
        if key.startswith(judge.root):
            judge.broken("P6", f"{key} is still there")
    for life in judge.ledger.all():
        has_outcome = life.record or (life.worked_on and life.worked_on.record)
        if (life.end not in ("overwritten", "merged", "removed", "repeated") or life.is_missed) and not has_outcome:
            judge.broken("P1", f"{life.path} has no outcome")
        if life.end == "merged":
            _check_merged(world, judge, life)
        elif life.end == "deleted":
            for line in life.lettered:
                judge.letters.check_kept(world, judge.root, life, line)
    judge.unread.check_quiet()
    judge.edits.check_quiet([call for calls in judge.history.calls.values() for call in calls])
    judge.sends.check_quiet()
    judge.members.check_quiet()
    judge.partitions.journals.check_quiet()
    check_schedules(world, judge)
    judge.history.check_settings(f"{judge.root}queue.json")
    if cast.profile.exact:
        for life in judge.ledger.all():
            if life.end == "deleted":
                _check_starts(judge, life)
    if cast.profile.undisturbed and any(cast.counts.values()):
        judge.broken("unexpected", f"nothing went wrong, and yet the sweeper had to step in: {cast.counts}")


def _check_merged(world: World, judge: Judge, life: Life) -> None:
    """[P1] A replay that was taken for the death before it must not lose its bytes: letter or message, one is there."""
    alike = judge.ledger.alike(life)
    died = any(one.record and one.record.outcome == "dead" and 0 in one.lettered for one in alike)
    # A delayed message is replayed as one that is due.
    elsewhere = judge.ledger.lives.get(f"messages/{name_of(life.path)}", ())
    # One of a group goes to its end.
    named = (*elsewhere, *judge.ledger.of_group(life))
    # An operator may have edited the letter: then the replay has the bytes that he wrote instead of these.
    edited = judge.letters.edited
    replays = [
        one for one in named if one.body == life.body or one.body in edited.get((replay_of(one.path), life.body), ())
    ]
    is_later = any(one.order > life.order for one in (*alike, *replays))
    is_unstoppable = life.is_unstoppable or life.path in judge.letters.unstoppable
    # Equal bytes were at work when it was PUT, and completed after that: they were one message. Or just before it, and
    # their holder had not deleted them yet: then no death came after that.
    completed = [one for one in alike if one.record and one.record.outcome == "completed"]
    last = max((one for one in alike if one.record), key=lambda one: one.recorded_at, default=None)
    is_done = any(one.recorded_at >= life.last_put_at for one in completed) or (life.was_leased and last in completed)
    # Someone deleted it by hand after its death, and before its holder did; then its letter was replayed to this name.
    is_meddled = any(one.end == "removed" and one.record and one.recorded_at <= one.ended_at for one in alike)
    is_excused = is_later or is_done or is_unstoppable or is_meddled
    if died and not is_excused and not judge.letters.keep(world, judge.root, life):
        judge.broken("P1", f"{life.path} was replayed, and deleted as if it were its former life")


def _check_starts(judge: Judge, life: Life) -> None:
    """Without crashes, pauses and lost answers, a handler starts exactly as often as its script asks for.  [P5]"""
    for line, body in life.lines.items():
        plan = json.loads(body)["plan"]
        if body in judge.history.replayed:
            continue
        steps = [plan[min(attempt, len(plan)) - 1] for attempt in range(1, judge.max_attempts + 1)]
        expected = next((number for number, step in enumerate(steps, 1) if step != "f"), judge.max_attempts)
        attempts = [run.attempt for run in life.runs.get(line, ()) if run.ended != "postponed"]
        if attempts != list(range(1, expected + 1)) and life.puts == 1:
            judge.broken("unexpected", f"{life.path} line {line} ran as attempts {attempts}, expected {expected}")
        dead = steps[expected - 1] != "k"
        if dead != (line in life.lettered):
            judge.broken("unexpected", f"{life.path} line {line} should {'' if dead else 'not '}be dead")


def tally(judge: Judge) -> Counter[str]:
    """One row of the proof's table."""
    counts: Counter[str] = Counter()
    for life in judge.ledger.all():
        if life.end in ("overwritten", "merged", "repeated"):
            continue
        lines = life.lines
        counts["enqueued"] += len(lines)
        if life.record and life.record.outcome == "cancelled":
            counts["cancelled"] += len(lines)
        elif life.record:
            counts["dead"] += len(life.lettered)
            counts["completed"] += len(lines) - len(life.lettered)
        for runs in life.runs.values():
            for former, run in pairwise(runs):
                counts[_reason(life, former, run)] += 1
    for violation in judge.violations:
        counts[_COLUMN_OF[violation.kind]] += 1
    return counts


def _reason(life: Life, former: Run, run: Run) -> str:
    """Why a handler ran again."""
    if former.ended in ("failed", "rejected") and former.ended_at <= run.began_at:
        return "retry"
    if former.process.is_alive and not (former.ended and former.ended_at <= run.began_at):
        return "zombie"
    if former.ended == "ok" and len(life.lines) > 1:
        return "batch re-run"
    return "expired lease"
