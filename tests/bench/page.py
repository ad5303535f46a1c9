"""`python -m bench.page [FILE]`: put a run's numbers into tests/bench/README.md, and a summary of them beside it.

FILE has every raw number, thousands of lines (`make bench` writes build/bench/bench.json). What is committed is small:
results.json has the median and the spread of each row, a line each, and the page is made of nothing else.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results.json", HERE / "README.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
SERIES = ("ours", "theirs", "ratio")


def write(result: Path) -> None:
    found = merged(summary(json.loads(result.read_text())), json.loads(RESULTS.read_text()))
    RESULTS.write_text(as_json(found))
    PAGE.write_text(page(found, PAGE.read_text()))
    drawing = result.with_name("growth.svg")
    if drawing.exists():
        shutil.copyfile(drawing, HERE / "growth.svg")


def summary(full: dict[str, Any]) -> dict[str, Any]:
    """A run without its raw numbers."""
    parts = {
        name: {
            "title": part["title"],
            "rows": [_row(row) for row in part["rows"]],
            "skipped": part["skipped"],
            "notes": part["notes"],
        }
        for name, part in full["parts"].items()
    }
    return {**{name: of for name, of in full.items() if name != "parts"}, "parts": parts}


def merged(found: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """A run of some parts takes the place of these; what it did not measure stays as it was, with its own heading."""
    if not before["parts"].keys() - found["parts"].keys():
        return found
    machine = found["machine"]
    when = (
        f"measured {found['began_at'][:10]}, commit `{machine['commit']}`, {found['repetitions']} repetitions, load "
        f"average {machine['load_average'][0]:.0f}"
    )
    parts = {name: part | {"notes": [*part["notes"], when]} for name, part in found["parts"].items()}
    return {**before, "parts": before["parts"] | parts}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    found = {name: of for name, of in row.items() if name not in SERIES}
    for name in SERIES:
        if name in row:
            found[name] = [_short(row[name][quantity]) for quantity in ("median", "low", "high")]
    return found | {"unit": row["ours"]["unit"]}


def _short(number: float) -> float:
    """More digits than this were never measured."""
    return float(f"{number:.4g}")


def as_json(found: dict[str, Any]) -> str:
    """One line for each row: a diff shows which figures changed."""
    lines = ["{"]
    lines += [f" {json.dumps(name)}: {_line(of)}," for name, of in found.items() if name != "parts"]
    lines.append(' "parts": {')
    parts = []
    for name, part in found["parts"].items():
        rows = ",\n".join(f"   {_line(row)}" for row in part["rows"])
        said = "".join(f',\n   "{key}": {_line(part[key])}' for key in ("skipped", "notes"))
        parts.append(
            f'  {json.dumps(name)}: {{\n   "title": {_line(part["title"])},\n   "rows": [\n{rows}\n   ]{said}\n  }}'
        )
    return "\n".join([*lines, ",\n".join(parts), " }", "}", ""])


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def page(found: dict[str, Any], before: str) -> str:
    """The page, with these figures in place of those that it had."""
    head, _, rest = before.partition(BEGIN)
    return "\n".join([head + BEGIN, "", *_measured(found), END + rest.partition(END)[2]])


def _measured(found: dict[str, Any]) -> Iterator[str]:
    machine = found["machine"]
    yield (
        f"{found['began_at'][:10]}, commit `{machine['commit']}`; {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gib']} GiB, {machine['system']}, Python {machine['python']}; "
        f"{found['repetitions']} repetitions of each, median and (lowest to highest) ratio."
    )
    yield ""
    for part in found["parts"].values():
        yield f"### {part['title']}"
        yield ""
        yield "| | ours | against | theirs | ratio | goal |"
        yield "|---|--:|---|--:|--:|--:|"
        for row in part["rows"]:
            yield "| " + " | ".join(_cells(row)) + " |"
        yield ""
        for why in part["skipped"]:
            yield f"Skipped: {why}."
            yield ""
        if part["notes"]:
            yield " ".join(f"{note[:1].upper()}{note[1:].rstrip('.')}." for note in part["notes"])
            yield ""


def _cells(row: dict[str, Any]) -> Iterator[str]:
    yield row["what"]
    yield f"{_number(row['ours'][0])} {row['unit']}"
    if "ratio" not in row:
        yield from (row.get("note", ""), "", "", "")
        return
    median, low, high = row["ratio"]
    yield row["against"]
    yield _number(row["theirs"][0])
    spread = f" ({_number(low)} to {_number(high)})" if low != high else ""
    yield f"**{_number(median)}×**{spread}"
    yield f"≥ {row['goal']:g}× {'✓' if row['is_met'] else '✗'}" if "goal" in row else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "build/bench/bench.json"))
