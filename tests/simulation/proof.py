"""`make proof`: schedules, crash matrix, planted bugs, real processes; one table, and exit 1 if a promise broke."""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .checks import COLUMNS, REASONS
from .crash_matrix import explore
from .mutations import Catch, Mutation, hunt, planted
from .operations import OPERATIONS
from .schedules import run

PARTS = ("schedules", "matrix", "bugs", "processes")
#: What must be nothing.
ZERO = ("lost", "unexpected", "duplicate outcomes", "double live leases")
CHUNK = 100
MOST_SHOWN = 10


@dataclass(slots=True)
class Part:
    """One row of the table."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    cases: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Part) -> None:
        self.counts += other.counts
        self.cases += other.cases
        self.failures += other.failures


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


def prove_schedules(console: Console, count: int, processes: int) -> Part:
    chunks = [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
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
    """Every planted bug hunted, and the scoreboard printed."""
    planted = list(mutations)
    catches: list[Catch] = []
    with ThreadPoolExecutor(processes) as pool, _bar(console) as bar:
        task = bar.add_task("planted bugs", total=len(planted))
        for catch in pool.map(hunt, planted):
            catches.append(catch)
            bar.update(task, advance=1)
    table = Table("planted bug", "caught by", "schedules", "seconds", "as", title="Scoreboard")
    for catch in catches:
        by = catch.by or "NOBODY"
        table.add_row(catch.mutation, by, str(catch.schedules), f"{catch.seconds:.1f}", catch.what)
    console.print(table)
    return catches


def prove_processes(console: Console, seconds: float) -> Part:
    """Part 4: real processes on a real server. Raises ImportError, naming it, if that module is missing."""
    console.print(f"real processes: kill -9 and SIGSTOP for {seconds:.0f} s, then draining …")
    found: Mapping[str, Any] = importlib.import_module("simulation.processes").run(seconds)
    reasons = found.get("runs beyond the first", {})
    part = Part("real processes", Counter({name: int(found.get(name, 0)) for name in COLUMNS}), 1)
    part.counts.update(reasons)
    part.failures = [str(detail) for detail in found.get("details", ())]
    console.print(f"seed {found.get('seed')}: {found.get('kills')} kills, {found.get('pauses')} pauses", markup=False)
    for failure in part.failures[:MOST_SHOWN]:
        console.print(failure, style="red", markup=False)
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
    for reason in (*REASONS, *sorted(others)):
        table.add_row(f"ran again: {reason}", *(f"{part.counts[reason]:,}" for part in parts))
    console.print(table)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make proof", description=__doc__)
    parser.add_argument("--schedules", type=int, default=200_000, metavar="N")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="how many at once")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long real processes are tormented")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, metavar="PART", help=", ".join(PARTS))
    options = parser.parse_args(arguments)
    console = Console()
    began = time.monotonic()
    parts: list[Part] = []
    uncaught: list[str] = []
    if "schedules" in options.only:
        parts.append(prove_schedules(console, options.schedules, options.processes))
    if "matrix" in options.only:
        parts.append(prove_matrix(console, options.processes))
    if "bugs" in options.only:
        uncaught = [catch.mutation for catch in catch_bugs(console, planted(), options.processes) if not catch.by]
    if "processes" in options.only:
        parts.append(prove_processes(console, options.seconds))
    if parts:
        show(console, parts)
    for name in uncaught:
        console.print(f"not caught: {name}", style="red", markup=False)
    held = not uncaught and not any(part.counts[name] for part in parts for name in ZERO)
    minutes = (time.monotonic() - began) / 60
    console.print(f"{'Every promise held' if held else 'A promise was BROKEN'}; {minutes:.1f} minutes.")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
