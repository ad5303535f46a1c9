"""How a figure is taken: repeated, in turns with what it is compared to, and kept with every raw number.

Machines are noisy, so a ratio is taken from two measurements made one after the other, at least five times, and its
spread is shown. A rate alone says little; it is kept in the JSON file, not in the table.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

Measure = Callable[[], float]
#: Which of the two numbers is the better one: a rate should be more, a cost less.
Better = Literal["more", "less"]


@dataclass(frozen=True, slots=True)
class Series:
    """One thing, measured several times."""

    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def to_json(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "median": _short(self.median),
            "low": _short(min(self.values)),
            "high": _short(max(self.values)),
            "values": [_short(value) for value in self.values],
        }


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    ours: Series
    against: str = ""
    theirs: Series | None = None
    #: How many times better, pair by pair.
    ratio: Series | None = None
    goal: float | None = None
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        return None if self.goal is None or self.ratio is None else self.ratio.median >= self.goal

    def to_json(self) -> dict[str, Any]:
        found = {
            "what": self.what,
            "ours": self.ours.to_json(),
            "against": self.against,
            "theirs": self.theirs and self.theirs.to_json(),
            "ratio": self.ratio and self.ratio.to_json(),
            "goal": self.goal,
            "is_met": self.is_met,
            "note": self.note,
        }
        return {name: value for name, value in found.items() if value not in (None, "")}


@dataclass(slots=True)
class Part:
    """One question and its answers."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    #: What could not be measured here, and why.
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: Anything else worth keeping: machine-readable, not in the table.
    raw: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"rows": [row.to_json() for row in self.rows]}


class Bench:
    """Takes the figures of one run and keeps them."""

    def __init__(
        self, console: Console, *, repetitions: int = 5, scale: float = 1.0, output: Path | None = None
    ) -> None:
        """`scale`: how much larger than usual the data of the parts about Spark is; a busy machine bears less. `output`
        is written after each row: an interrupted run keeps what it has.
        """
        if repetitions < 1:
            raise ValueError(f"{repetitions} repetitions: at least one")
        if scale <= 0:
            raise ValueError(f"a scale of {scale}: more than nothing")
        self.scale = scale
        self.output = output
        self.console = console
        self.repetitions = repetitions
        self.parts: list[Part] = []
        self.began_at = datetime.now(UTC)

    def scaled(self, count: int, *, step: int = 1) -> int:
        """A number of messages at the scale that was asked for, a multiple of `step`."""
        return max(step, round(count * self.scale / step) * step)

    @contextmanager
    def part(self, name: str, title: str) -> Iterator[Part]:
        """What is measured inside belongs to this question."""
        self.console.rule(f"[bold]{title}[/]", align="left")
        self.parts.append(Part(name, title))
        yield self.parts[-1]

    def compare(
        self,
        what: str,
        ours: Measure,
        against: str,
        theirs: Measure,
        *,
        unit: str,
        better: Better = "more",
        goal: float | None = None,
        note: str = "",
    ) -> Row:
        """Measure both in turns; the ratio says how many times better ours is."""
        pairs = []
        with self.console.status(what) as status:
            for turn in range(self.repetitions):
                status.update(f"{what}: {turn + 1} of {self.repetitions}")
                # In turns, each first as often as second: what warms up or wears out does so for both.
                if turn % 2:
                    other = theirs()
                    pairs.append((ours(), other))
                else:
                    pairs.append((ours(), theirs()))
        return self.pair(what, pairs, against, unit=unit, better=better, goal=goal, note=note)

    def pair(
        self,
        what: str,
        pairs: Sequence[tuple[float, float]],
        against: str,
        *,
        unit: str,
        better: Better = "more",
        goal: float | None = None,
        note: str = "",
    ) -> Row:
        """Keep pairs (ours, theirs) that were measured elsewhere, side by side."""
        ratios = [mine / other if better == "more" else other / mine for mine, other in pairs]
        return self._keep(
            Row(
                what=what,
                ours=Series(unit, tuple(mine for mine, _ in pairs)),
                against=against,
                theirs=Series(unit, tuple(other for _, other in pairs)),
                ratio=Series("×", tuple(ratios)),
                goal=goal,
                note=note,
            )
        )

    def figure(self, what: str, measure: Measure, *, unit: str, note: str = "") -> Row:
        """Something by itself: a latency, an import time, megabytes."""
        with self.console.status(what):
            values = tuple(measure() for _ in range(self.repetitions))
        return self._keep(Row(what=what, ours=Series(unit, values), note=note))

    def series(self, what: str, values: Sequence[float], *, unit: str, note: str = "") -> Row:
        """Values that were measured elsewhere; a count, which has no spread, is a series of one."""
        return self._keep(Row(what=what, ours=Series(unit, tuple(values)), note=note))

    def skip(self, why: str) -> None:
        """Say what is not measured here, and why."""
        self.parts[-1].skipped.append(why)
        self.console.print(f"  [yellow]skipped[/] {why}")

    def note(self, said: str) -> None:
        self.parts[-1].notes.append(said)
        self.console.print(f"  [dim]{said}[/]")

    def _keep(self, row: Row) -> Row:
        self.parts[-1].rows.append(row)
        if self.output:
            self.write(self.output)
        self.console.print(f"  {row.what}: {_said(row)}", highlight=False)
        return row

    def to_json(self) -> dict[str, Any]:
        return {
            "began_at": self.began_at.isoformat(timespec="seconds"),
            "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "repetitions": self.repetitions,
            "scale": self.scale,
            "machine": machine(),
            "parts": {part.name: part.to_json() for part in self.parts},
        }

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n")

    def table(self) -> Table:
        """The one table: what was compared, how many times better, the spread, and the goal."""
        table = Table(title="s3queue, measured", title_justify="left", padding=(0, 1))
        for heading in ("", "ours", "against", "theirs", "ratio (low to high)", "goal"):
            table.add_column(heading, justify="left" if heading in ("", "against") else "right")
        for part in self.parts:
            table.add_section()
            table.add_row(f"[bold]{part.title}[/]")
            for row in part.rows:
                table.add_row(*_cells(row))
            for why in part.skipped:
                table.add_row(f"[yellow]skipped: {why}[/]")
        return table


def machine() -> dict[str, Any]:
    """What the figures were taken on; no names, no paths."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("boto3", "awscrt", "pyspark")},
        "commit": _git("rev-parse", "--short", "HEAD") + ("+changes" if _git("status", "--porcelain") else ""),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), capture_output=True, text=True, check=False).stdout.strip()


def _said(row: Row) -> str:
    said = f"{_number(row.ours.median)} {row.ours.unit}"
    if row.theirs is None or row.ratio is None:
        return said
    verdict = {True: " [green]✓[/]", False: f" [red]goal {row.goal}×[/]", None: ""}[row.is_met]
    return f"{said}; {row.against} {_number(row.theirs.median)}; [bold]{_number(row.ratio.median)}×[/]{verdict}"


def _cells(row: Row) -> Iterator[str]:
    yield f"  {row.what}"
    yield f"{_number(row.ours.median)} {row.ours.unit}"
    if row.theirs is None or row.ratio is None:
        yield from (row.note, "", "", "")
        return
    yield row.against
    yield _number(row.theirs.median)
    low, high = min(row.ratio.values), max(row.ratio.values)
    yield f"[bold]{_number(row.ratio.median)}×[/] ({_number(low)} to {_number(high)})"
    mark = {True: "[green]✓[/]", False: "[red]✗[/]", None: ""}[row.is_met]
    yield f"≥ {row.goal:g}× {mark}" if row.goal else ""


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _short(value: float) -> float:
    return float(f"{value:.6g}")
