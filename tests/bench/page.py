"""`python -m bench.page [FILE]`: put a run's numbers into tests/bench/README.md, and the JSON file beside it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write(result: Path) -> None:
    found = json.loads(result.read_text())
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text("\n".join([before + BEGIN, "", *_page(found), END + after]))
    shutil.copyfile(result, HERE / "results.json")
    drawing = result.with_name("growth.svg")
    if drawing.exists():
        shutil.copyfile(drawing, HERE / "growth.svg")


def _page(found: dict[str, Any]) -> Iterator[str]:
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
    yield f"{_number(row['ours']['median'])} {row['ours']['unit']}"
    if "ratio" not in row:
        yield from (row.get("note", ""), "", "", "")
        return
    ratio = row["ratio"]
    yield row["against"]
    yield _number(row["theirs"]["median"])
    spread = f" ({_number(ratio['low'])} to {_number(ratio['high'])})" if ratio["low"] != ratio["high"] else ""
    yield f"**{_number(ratio['median'])}×**{spread}"
    yield f"≥ {row['goal']:g}× {'✓' if row['is_met'] else '✗'}" if "goal" in row else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "build/bench/bench.json"))
