"""Schedules (cron lines) and their judge: each due instant at most once, and once if a sweeper lives.  [P10]"""

from __future__ import annotations

from datetime import timedelta
from itertools import takewhile

from s3queue.documents.schedule import StoredSchedule
from s3queue.flow.cron import occurrences
from s3queue.paths import SCHEDULED, format_due, runs_once
from s3queue.sweeper.sweeper import Sweeper

from .functions import Container
from .judge import Judge
from .stage import Plot, Stage, script
from .world import EPOCH, World

#: The schedule is made so many seconds before its instant; the sweep on trial begins a moment later.
BEFORE = 10.0


def check_schedules(world: World, judge: Judge) -> None:
    """Every instant that has passed since a schedule was made has its outcome, and has it once."""
    ran = _instants(judge)
    for (due, name), paths in ran.items():
        if len(paths) > 1:
            judge.broken("P10", f"{name} ran {len(paths)} times for {due}: {', '.join(sorted(paths))}")
    now = EPOCH + timedelta(seconds=world.now)
    for key, stored in world.objects.items():
        if not key.startswith(f"{judge.root}schedules/"):
            continue
        found = StoredSchedule.from_bytes(stored.body, key)
        name, made = found.schedule.name, judge.schedules_made.get(found.schedule.name)
        if made is None:
            continue  # nobody was told that it is there, or an operator changes it all the time
        instants = occurrences(found.schedule.cron, found.schedule.tz, EPOCH + timedelta(seconds=made))
        passed = list(takewhile(lambda at: at <= now, instants))
        # Of several that were missed, only the last may be wanted.
        for at in passed[-1:] if found.schedule.missed == "last" else passed:
            if not ran.get((format_due(at), name)):
                judge.broken("P10", f"{name} is due at {at}, and never came")


def _instants(judge: Judge) -> dict[tuple[str, str], set[str]]:
    """(Instant, schedule) → the paths of its messages that have an outcome."""
    ran: dict[tuple[str, str], set[str]] = {}
    for path, lives in judge.ledger.lives.items():
        if runs_once(path) and any(life.record for life in lives):
            due, name = path.split("/")[1], path.rpartition("/")[2].removeprefix(SCHEDULED)
            ran.setdefault((due, name), set()).add(path)
    return ran


def unfired(world: World) -> list[str]:
    """The documents of schedules for which a sweeper still has something to do."""
    now, found = EPOCH + timedelta(seconds=world.now), []
    for key, stored in world.objects.items():
        if "/schedules/" in key:
            schedule = StoredSchedule.from_bytes(stored.body, key)
            if schedule.paused and not schedule.placing:
                continue
            due = next(occurrences(schedule.schedule.cron, schedule.schedule.tz, schedule.after), None)
            if schedule.placing or (due and due <= now):
                found.append(key)
    return found


def _sweep(worker: Container) -> None:
    Sweeper(queue=worker.queue, dispatch=lambda paths: None).sweep()


def _fire(*, instants: int = 1, missed: bool = False, beside: bool = False, plan: str = "k") -> Plot:
    """A sweep that puts what a schedule asks for: so many instants, just before the first, or after the last."""

    def plot(stage: Stage) -> str:
        world, first = stage.world, EPOCH + timedelta(minutes=1)
        world.run(60.0 - BEFORE)
        stage.judge.schedules_made["s"] = world.now
        cron = f"{first.minute}-{first.minute + instants - 1} {first.hour} {first.day} {first.month} *"
        body = script("s", plan).decode()
        stage.prepare(lambda helper: helper.queue.every(cron, name="s", body=body, missed="all"))
        if missed:
            world.run(60.0 * instants + 5.0)
        if beside:
            world.spawn(stage.helper.process, lambda: _sweep(stage.helper))
        stage.act(_sweep)
        return f"delayed/{first:%Y%m%dT%H%M%SZ}/scheduled-s"

    return plot


FIRED: dict[str, Plot] = {
    "fire a schedule": _fire(),
    "fire a schedule whose message dies": _fire(plan="r"),
    "fire a schedule beside another sweeper": _fire(beside=True),
    "fire what was missed": _fire(instants=2, missed=True),
}
