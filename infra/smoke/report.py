"""Report: what one smoke saw, as one Markdown file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from s3queue.costs.lines import Line

from . import cost
from .cleanup import Left
from .installation import Figure


@dataclass(frozen=True, slots=True)
class Result:
    """How one path ended."""

    path: str
    said: str
    is_true: bool
    seconds: float


@dataclass(kw_only=True)
class Smoke:
    """One run, from the deployment to the clean-up."""

    title: str
    is_aws: bool
    name: str
    commit: str
    began_at: datetime
    context: Sequence[str] = ()
    results: list[Result] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    lines: Sequence[Line] = ()
    #: Operation of S3 → requests of the smoke itself.
    asked: Mapping[str, int] = field(default_factory=dict)
    facts: str = ""
    #: Why it ended early.
    failure: str = ""
    left: Left = field(default_factory=Left)
    minutes: float = 0.0

    @property
    def is_fine(self) -> bool:
        return (
            bool(self.results) and all(result.is_true for result in self.results) and not self.failure and not self.left
        )


def markdown(smoke: Smoke) -> str:
    """The whole report. Its first paragraph says against what it ran: an emulator proves nothing about AWS."""
    parts = [
        "# AWS smoke report",
        "",
        f"**Against: {smoke.title}.**" + ("" if smoke.is_aws else " This says nothing about AWS."),
        "",
        f"{smoke.began_at:%Y-%m-%d %H:%M} UTC, commit {smoke.commit}, stack {smoke.name}, {smoke.minutes:.0f} minutes "
        f"from the deployment to the last check of the clean-up. Options: {', '.join(smoke.context) or 'none'}.",
        "",
        f"Result: **{'every path as it has to be, nothing left' if smoke.is_fine else 'FAILED'}**."
        + (f" It ended early: {_cell(smoke.failure)}" if smoke.failure else ""),
        "",
        "## Paths",
        "",
        "| path | | what was seen | seconds |",
        "|---|---|---|---|",
        *(
            f"| {one.path} | {'ok' if one.is_true else '**failed**'} | {_cell(one.said)} | {one.seconds:.0f} |"
            for one in smoke.results
        ),
        "",
        "## Measured",
        "",
        "| | |",
        "|---|---|",
        *(f"| {_cell(figure.what)} | {figure.value} |" for figure in smoke.figures),
        "",
        "## Cost",
        "",
        "The smoke's own requests and Spark's hours are counted, where the table says so. The requests of the "
        "functions are those of the model (`s3queue estimate`) for what was sent: S3 tells them only to whoever pays "
        "for its request metrics. List prices of us-east-1, without log lines and data transfer.",
        "",
        "| | count | unit | $ | |",
        "|---|---|---|---|---|",
        *(
            f"| {line.what} | {_number(line.count)} | {line.unit} | {line.cost:.5f} | {line.how} |"
            for line in smoke.lines
        ),
        f"| **all** | | | **{cost.total(smoke.lines):.4f}** | |",
        "",
        "Requests of the smoke itself: "
        + (", ".join(f"{count:,} {name}" for name, count in sorted(smoke.asked.items())) or "none")
        + ".",
        "",
        "## Facts about AWS",
        "",
        smoke.facts or "Not measured.",
        "",
        "## What is left",
        "",
        *_left(smoke),
    ]
    return "\n".join(parts) + "\n"


def _left(smoke: Smoke) -> list[str]:
    stays = "The code stays in the bucket of `cdk bootstrap`, as after every deployment; `cdk gc` removes it."
    if not smoke.left:
        return [f"No stack, no bucket and no log group of this name is left. {stays}"]
    told = [f"- {thing}: `{command}`" for thing, command in smoke.left.things.items()]
    why = ["", "What stood in the way:", "", verbatim(smoke.left.why)] if smoke.left.why else []
    return ["The clean-up did not remove everything:", "", *told, *why, "", stays]


def verbatim(text: str) -> str:
    """Indented, not fenced: tests run every fenced block of a document."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _number(count: float) -> str:
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
