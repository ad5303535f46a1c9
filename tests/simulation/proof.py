"""`make proof`: schedules, crash matrix, planted bugs, real processes; one table, and exit 1 if a promise broke."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .checks import COLUMNS, REASONS
from .crash_matrix import explore
from .hunt import MATRIX
from .mutations import Catch, Mutation, hunt, planted
from .operations import OPERATIONS
from .real import rounds
from .schedules import run

PARTS = ("schedules", "matrix", "bugs", "processes")
#: What must be nothing.
ZERO = ("lost", "unexpected", "duplicate outcomes", "double live leases")
CHUNK = 100
MOST_SHOWN = 10
#: The S3 clients that real processes use, one after the other and side by side.
STORES = ("boto3", "direct")
#: How long processes are tormented before they are judged, and about how long a round takes beyond that.
ROUND_SECONDS = 100.0
BESIDE_SECONDS = 60.0
FIRST_SEED = 20261116
#: At the end of a round, per queue: a kill with no other fault, which shows how soon a message is redelivered.
CALM_KILLS = 2


@dataclass(slots=True)
class Part:
    """One row of the table."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    cases: int = 0
    failures: list[str] = field(default_factory=list)
    #: Of planted bugs: what caught them. Of real processes: what was done to them, and their median and longest times
    #: in seconds.
    done: Counter[str] = field(default_factory=Counter)
    times: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, other: Part) -> None:
        self.counts += other.counts
        self.cases += other.cases
        self.failures += other.failures
        self.done += other.done
        for name, (median, longest) in other.times.items():
            # Of medians, the largest: none was worse.
            known = self.times.get(name, (0.0, 0.0))
            self.times[name] = (max(known[0], median), max(known[1], longest))


def run_seeds(seeds: range) -> Part:
    part = Part("schedules")
    for seed in seeds:
        verdict = run(seed)
        part.counts += verdict.counts
        part.cases += 1
        if verdict.violations:
            part.failures.append(f"python -m simulation.replay {seed}   {verdict.profile}: {verdict.violations[0]}")
    return part


def run_operation(operation: str) -> Part:
    part = Part("crash matrix")
    for outcome in explore(operation):
        part.counts += outcome.verdict.counts
        part.cases += 1
        if outcome.verdict.violations:
            part.failures.append(f"{outcome.case}   {outcome.verdict.violations[0]}")
    return part


def prove_schedules(console: Console, first: int, count: int, processes: int) -> Part:
    end = first + count
    chunks = [range(start, min(start + CHUNK, end)) for start in range(first, end, CHUNK)]
    with multiprocessing.Pool(processes) as pool:
        return _collect(console, "schedules", "schedules", pool.imap_unordered(run_seeds, chunks), count)


def prove_matrix(console: Console, processes: int) -> Part:
    with multiprocessing.Pool(processes) as pool:
        parts = pool.imap_unordered(run_operation, OPERATIONS)
        return _collect(console, "crash matrix", "operations", parts, len(OPERATIONS))


def _collect(console: Console, name: str, unit: str, parts: Iterable[Part], count: int) -> Part:
    whole = Part(name)
    with _bar(console) as bar:
        task = bar.add_task(name, total=count)
        for part in parts:
            whole.add(part)
            bar.update(task, advance=part.cases if unit == "schedules" else 1)
            for failure in part.failures[: max(0, MOST_SHOWN - len(whole.failures) + len(part.failures))]:
                bar.console.print(failure, style="red", markup=False)
    return whole


def _bar(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console)


def catch_bugs(console: Console, mutations: Iterable[Mutation], processes: int) -> list[Catch]:
    """Every planted bug hunted, and the scoreboard printed.

    What caught one last is tried first: from the beginning, a minute does not reach what catches some of them.
    """
    planted = list(mutations)
    catches: list[Catch] = []
    with ThreadPoolExecutor(processes) as pool, _bar(console) as bar:
        task = bar.add_task("planted bugs", total=len(planted))
        for catch in pool.map(partial(hunt, remembers=True), planted):
            catches.append(catch)
            bar.update(task, advance=1)
    table = Table("planted bug", "caught by", "schedules", "seconds", "as", title="Scoreboard")
    for catch in catches:
        by = catch.by or "NOBODY"
        table.add_row(catch.mutation, by, str(catch.schedules), f"{catch.seconds:.1f}", catch.what)
    console.print(table)
    return catches


def part_of_bugs(catches: Sequence[Catch]) -> Part:
    part = Part("planted bugs", cases=len(catches))
    part.done = Counter(f"bugs caught by {_catcher(catch)}" for catch in catches)
    return part


def _catcher(catch: Catch) -> str:
    if not catch.by or catch.by.startswith("schedule "):
        return "schedules" if catch.by else "nobody"
    return "the crash matrix" if catch.by.startswith(MATRIX) else "tests"


def prove_processes(console: Console, minutes: float) -> list[Part]:
    """Part 4: the shipped parts as real processes behind a faulty proxy, once per S3 client, both at the same time."""
    began = time.monotonic()
    parts: list[Part] = []
    # Not forked: what runs here has threads.
    with ProcessPoolExecutor(len(STORES), multiprocessing.get_context("spawn")) as pool, _bar(console) as bar:
        futures = [pool.submit(run_rounds, store, minutes * 60) for store in STORES]
        task = bar.add_task("real processes", total=round(minutes * 60))
        while not all(future.done() for future in futures):
            bar.update(task, completed=min(round(time.monotonic() - began), round(minutes * 60)))
            time.sleep(0.5)
        parts = [future.result() for future in futures]
    for part in parts:
        for failure in part.failures[:MOST_SHOWN]:
            console.print(failure, style="red", markup=False)
    return parts


def run_rounds(store: str, seconds: float) -> Part:
    """Rounds with one S3 client, at least one, until the time is up, or one breaks off."""
    part = Part(f"processes, {store}")
    until = time.monotonic() + seconds
    while not part.cases or time.monotonic() + BESIDE_SECONDS < until:
        left = until - time.monotonic() - BESIDE_SECONDS
        torment = max(8.0, min(ROUND_SECONDS, left))
        round = rounds.run(torment, store=store, seed=FIRST_SEED + part.cases, calm_kills=CALM_KILLS)
        part.add(part_of(round))
        if not round.requests:
            break  # It broke off, perhaps because there is no server here: half an hour of that fills a disk.
    return part


def part_of(round: rounds.Round) -> Part:
    verdict = round.verdict
    part = Part("", Counter({name: verdict.counts[name] for name in COLUMNS}) + verdict.again, 1, verdict.details)
    calls = {name: count for name, count in verdict.counts.items() if name.startswith("calls ")}
    part.done = Counter(calls | {"requests": round.requests}) + round.torments
    part.done += Counter({f"fault: {name}": count for name, count in round.faults.items()})
    part.times = verdict.times
    return part


def show(console: Console, parts: list[Part]) -> None:
    """One table: a column per part, so that it fits the narrowest terminal."""
    table = Table("", *(part.name for part in parts), title="The proof")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("cases", *(f"{part.cases:,}" for part in parts), end_section=True)
    for name in COLUMNS:
        table.add_row(name, *(f"{part.counts[name]:,}" for part in parts), end_section=name == COLUMNS[-1])
    others = {name for part in parts for name in part.counts} - {*COLUMNS, *REASONS}
    reasons = (*REASONS, *sorted(others))
    for reason in reasons:
        is_last = reason == reasons[-1]
        table.add_row(f"ran again: {reason}", *(f"{part.counts[reason]:,}" for part in parts), end_section=is_last)
    for name in sorted(
        {name for part in parts for name in part.done}, key=lambda name: (name.startswith("fault:"), name)
    ):
        table.add_row(name, *(f"{part.done[name]:,}" if part.done else "" for part in parts))
    table.add_section()
    for name in sorted({name for part in parts for name in part.times}):
        times = [part.times.get(name) for part in parts]
        table.add_row(f"{name} within, s", *(f"{found[0]:.1f}, {found[1]:.1f}" if found else "" for found in times))
    console.print(table)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make proof", description=__doc__)
    parser.add_argument("--schedules", type=int, default=200_000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first schedule; 0 if it is not said")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="how many at once")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long real processes are tormented, in rounds")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, metavar="PART", help=", ".join(PARTS))
    options = parser.parse_args(arguments)
    console = Console()
    began = time.monotonic()
    parts: list[Part] = []
    uncaught: list[str] = []
    if "schedules" in options.only:
        parts.append(prove_schedules(console, options.first, options.schedules, options.processes))
    if "matrix" in options.only:
        parts.append(prove_matrix(console, options.processes))
    if "bugs" in options.only:
        catches = catch_bugs(console, planted(), options.processes)
        parts.append(part_of_bugs(catches))
        uncaught = [catch.mutation for catch in catches if not catch.by]
    if "processes" in options.only:
        parts += prove_processes(console, options.minutes)
    if parts:
        show(console, parts)
    for part in parts:
        # Those that were shown on the way, too: here they are together, and can be copied.
        for failure in sorted(part.failures):
            console.print(failure, style="red", markup=False, soft_wrap=True)
    for name in uncaught:
        console.print(f"not caught: {name}", style="red", markup=False)
    held = not uncaught and not any(part.counts[name] for part in parts for name in ZERO)
    minutes = (time.monotonic() - began) / 60
    console.print(f"{'Every promise held' if held else 'A promise was BROKEN'}; {minutes:.1f} minutes.")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
