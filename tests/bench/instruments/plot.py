"""A plot as a small SVG, written directly: lines with dots over a logarithmic axis, and a legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

#: What was done → number of messages → cost.
Lines = Mapping[str, Mapping[int, float]]
Scale = Callable[[float], float]

WIDTH, HEIGHT, GAP = 480, 320, 60
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2")
#: A line to compare with; drawn in grey and dashed.
REFERENCE = "a straight line"


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    lines: Lines
    logarithmic: bool


def growth(costs: Lines, memory: Lines, path: Path) -> None:
    """Cost beside a straight line, and memory, which has none to follow."""
    highest = max(costs.values(), key=lambda sizes: sizes[max(sizes)])
    most = max(highest)
    straight = {size: highest[most] * size / most for size in highest}
    panels = (
        Panel("CPU, ms", {**costs, REFERENCE: straight}, logarithmic=True),
        Panel("memory beyond the start, MiB", memory, logarithmic=False),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_drawing(panels)) + "\n")


def _drawing(panels: Sequence[Panel]) -> Iterator[str]:
    most = max(len(panel.lines) for panel in panels)
    width, height = len(panels) * (WIDTH + GAP) + GAP // 2, HEIGHT + 60 + 16 * most
    box = f'viewBox="0 0 {width} {height}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif" font-size="11">'
    yield f'<rect width="{width}" height="{height}" fill="#fff"/>'
    for number, panel in enumerate(panels):
        yield f'<g transform="translate({GAP + number * (WIDTH + GAP)} 24)">'
        yield from _panel(panel)
        yield "</g>"
    yield "</svg>"


def _panel(panel: Panel) -> Iterator[str]:
    sizes = [size for line in panel.lines.values() for size in line]
    costs = [cost for line in panel.lines.values() for cost in line.values()]
    x = _logarithmic(min(sizes), max(sizes), 0, WIDTH)
    low, high = (
        (_decade(min(costs), math.floor), _decade(max(costs), math.ceil)) if panel.logarithmic else (0, max(costs))
    )
    y = (_logarithmic if panel.logarithmic else _linear)(low, high, HEIGHT, 0)
    yield f'<text y="-8">{escape(panel.title)}</text>'
    for size in sorted({10 ** round(math.log10(size)) for size in sizes}):
        yield _grid(f"M{x(size):.0f} 0V{HEIGHT}")
        yield f'<text x="{x(size):.0f}" y="{HEIGHT + 16}" text-anchor="middle">{size:,}</text>'
    for cost in _ticks(low, high, panel.logarithmic):
        yield _grid(f"M0 {y(cost):.0f}H{WIDTH}")
        yield f'<text x="-6" y="{y(cost) + 4:.0f}" text-anchor="end">{cost:g}</text>'
    yield f'<text x="{WIDTH}" y="{HEIGHT + 32}" text-anchor="end">messages</text>'
    for number, (what, line) in enumerate(panel.lines.items()):
        yield from _line(number, what, [(x(size), y(cost)) for size, cost in line.items()])


def _line(number: int, what: str, points: Sequence[tuple[float, float]]) -> Iterator[str]:
    reference = what == REFERENCE
    colour = "#999" if reference else COLOURS[number % len(COLOURS)]
    style = f'stroke="{colour}" stroke-width="1.5"' + (' stroke-dasharray="5 4"' if reference else "")
    drawn = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
    yield f'<polyline points="{drawn}" fill="none" {style}/>'
    if not reference:
        yield from (f'<circle cx="{left:.1f}" cy="{top:.1f}" r="2.5" fill="{colour}"/>' for left, top in points)
    top = HEIGHT + 36 + 16 * number
    yield f'<path d="M0 {top}h24" {style}/><text x="32" y="{top + 4}">{escape(what)}</text>'


def _grid(path: str) -> str:
    return f'<path d="{path}" stroke="#ddd"/>'


def _ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    if logarithmic:
        return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    step = 10 ** math.floor(math.log10(high))
    return [step * number for number in range(int(high // step) + 1)]


def _decade(value: float, rounded: Callable[[float], int]) -> float:
    return float(10.0 ** rounded(math.log10(value)))


def _logarithmic(low: float, high: float, first: float, last: float) -> Scale:
    return lambda value: first + (last - first) * math.log(value / low) / math.log(high / low)


def _linear(low: float, high: float, first: float, last: float) -> Scale:
    return lambda value: first + (last - first) * (value - low) / (high - low)
