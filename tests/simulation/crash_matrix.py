"""The crash matrix: every operation is killed, or put to sleep, before and after each of its requests.  [P6]

Singly, and in pairs: whoever repairs it is killed as well. Then sweeper and workers go on without faults, and the same
judge looks at the same promises as in the schedules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from s3queue.paths import partition_of

from .actors import sweeping
from .checks import check_quiet, leftovers, tally
from .faults import Profile, ScriptedFaults
from .functions import Fleet
from .operations import OPERATIONS
from .partitions import small_windows
from .schedules import Verdict, short_lines, silenced
from .sends import small_records
from .stage import Stage
from .threads import greenlets
from .undisturbed import UNDISTURBED
from .world import Fault

WRITES = ("put", "delete", "delete_many", "copy")
#: Long enough for a lease to run out and everything to be done by others.
ASLEEP = 60.0
#: Just long enough: the zombie wakes while the next one is at it.
NAPS = (8.0, 9.0, 10.0, 11.0, 12.0)
#: When, in a zombie's sleep, a producer PUTs the name again, and with which bytes: early enough for others to finish it
#: before the zombie wakes, or too late for that.
RE_PUTS = {"equal, early": 45.0, "equal, late": ASLEEP - 0.3, "other, late": ASLEEP - 0.3}
#: As these, while the lease of a worker that died is still there.
SOON = "equal, soon"


@dataclass(frozen=True, slots=True)
class Case:
    """One cell of the matrix: which processes meet what at which of their requests."""

    operation: str
    faults: tuple[tuple[str, int, str], ...] = ()
    #: How long whoever sleeps does so.
    seconds: float = ASLEEP
    #: What a producer PUTs while the subject sleeps: nothing, or one of `RE_PUTS`.
    re_put: str = ""

    def __str__(self) -> str:
        met = ", ".join(f"{process} {kind} request {number}" for process, number, kind in self.faults)
        met = met.replace("sleep", f"sleep {self.seconds:.0f} s")
        return f"{self.operation}: {met or 'no fault'}" + (f"; PUT anew: {self.re_put}" * bool(self.re_put))


@dataclass(slots=True)
class Outcome:
    case: Case
    verdict: Verdict
    log: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


def _fault(kind: str, seconds: float) -> Fault:
    if kind == "sleep before":
        return Fault(pause=seconds)
    if kind == "sleep after":
        return Fault(back=seconds)
    if kind == "time out after":
        return Fault(kind="answer lost", back=seconds)
    return Fault(kind=kind)


def run_case(case: Case) -> Outcome:
    """Stage the operation, let the faults happen, then let sweeper and workers repair it."""
    script = {process: (number, _fault(kind, case.seconds)) for process, number, kind in case.faults}
    faults = ScriptedFaults(script)
    stage = Stage(faults, Profile(exact=not case.faults and case.operation in OPERATIONS))
    world, judge = stage.world, stage.judge
    with silenced(), greenlets(), short_lines(), small_records(), small_windows(world), stage.patches:
        try:
            path = (OPERATIONS | UNDISTURBED)[case.operation](stage)
            begun = world.now
            if case.re_put:
                world.at(begun + (RE_PUTS | {SOON: 3.5})[case.re_put], lambda: stage.put_again(path, case.re_put))
            world.run(begun + 3.0)
            _repair(stage)
            check_quiet(world, judge, stage.cast)
        finally:
            world.close()
    verdict = Verdict(0, str(case), judge.violations, tally(judge), world.trace)
    return Outcome(case, verdict, faults.log)


def _repair(stage: Stage) -> None:
    world, judge = stage.world, stage.judge
    withheld: list[Sequence[str]] = []
    fleet = Fleet(stage.cast, 1, drains=False)
    # A partition is not cleared by the sweeper, but by whomever it hands it over to.
    lives = [life for life in judge.ledger.present.values() if not partition_of(life.path)]
    is_recorded = any(life.record for life in lives)
    is_open = not is_recorded

    def dispatch(paths: Sequence[str]) -> None:
        if is_open:
            fleet.dispatch(paths)
        else:
            withheld.append(paths)

    sweeping(stage.cast, dispatch, 2.5)
    if is_recorded:
        # What has an outcome needs no worker any more: the sweeper alone clears it away.  [P6]
        world.run(world.now + 35.0)
        for life in judge.ledger.present.values():
            # What was released, and then recorded by its former holder, waits for a worker, who finds the record.
            is_released = judge.releases.counts[life.path]
            if life.record and life.puts == 1 and not is_released and not partition_of(life.path):
                judge.broken("P6", f"{life.path} is recorded, and the sweeper alone did not clear it away")
        is_open = True
        for paths in withheld:
            fleet.dispatch(paths)
    quiet = False

    def look() -> None:
        nonlocal quiet
        if leftovers(world) or fleet.busy or not stage.is_finished:
            world.at(world.now + 1.0, look)
        else:
            quiet = True

    look()
    world.run(world.now + 200.0, done=lambda: quiet or bool(judge.violations))


# The enumeration


def singles(log: dict[str, list[tuple[str, str]]], operation: str) -> Iterator[Case]:
    """The subject killed before and after each of its requests."""
    for number in range(1, len(log["subject-1"]) + 1):
        for kind in ("crash before", "crash after"):
            yield Case(operation, (("subject-1", number, kind),))


def pairs(first: Outcome) -> Iterator[Case]:
    """The first one who repairs is killed as well, around each of its writes: a read leaves nothing behind."""
    for process in ("sweeper-1", "function-1"):
        for number, (operation, key) in enumerate(first.log.get(process, ()), 1):
            if operation in WRITES and not key.endswith("stats.json"):
                for kind in ("crash before", "crash after"):
                    yield Case(first.case.operation, (*first.case.faults, (process, number, kind)))


def zombies(log: dict[str, list[tuple[str, str]]], operation: str) -> Iterator[Case]:
    """The subject sleeps through everything that the others do, and then goes on."""
    for number in range(1, len(log["subject-1"]) + 1):
        for kind in ("sleep before", "sleep after", "time out after"):
            for re_put in ("", *RE_PUTS):
                yield Case(operation, (("subject-1", number, kind),), re_put=re_put)
        for nap in NAPS:
            yield Case(operation, (("subject-1", number, "sleep before"),), nap)


def deaths_before_a_put(log: dict[str, list[tuple[str, str]]], operation: str) -> Iterator[Case]:
    """The subject is killed, and its name is PUT anew, with equal bytes, before anybody has repaired what it left."""
    for number in range(1, len(log["subject-1"]) + 1):
        yield Case(operation, (("subject-1", number, "crash before"),), re_put=SOON)


def single_cases(operation: str) -> list[Case]:
    """Every case of one operation, without the pairs; to know its requests, it is carried out once."""
    if operation in UNDISTURBED:
        return [Case(operation)]
    log = run_case(Case(operation)).log
    # In this order: planted bugs are remembered by the number of the case that caught them.
    return [
        Case(operation),
        *singles(log, operation),
        *zombies(log, operation),
        *deaths_before_a_put(log, operation),
    ]


def explore(operation: str, *, pairs_of: int = 1) -> Iterator[Outcome]:
    """Every case of one operation, in order. Of each `pairs_of` single crashes, one has its pairs."""
    baseline = run_case(Case(operation))
    yield baseline
    for number, case in enumerate(singles(baseline.log, operation)):
        outcome = run_case(case)
        yield outcome
        if number % pairs_of == 0:
            for pair in pairs(outcome):
                yield run_case(pair)
    for case in (*zombies(baseline.log, operation), *deaths_before_a_put(baseline.log, operation)):
        yield run_case(case)
