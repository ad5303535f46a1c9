"""A proof that cannot fail proves nothing: every planted bug is caught, each by the promise that it breaks."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from rich.console import Console

from . import hunt as hunting
from . import proof
from .mutations import Catch, Mutation, hunt, planted
from .schedules import Verdict
from .violations import Violation


@pytest.mark.parametrize("mutation", planted(), ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_caught(mutation: Mutation) -> None:
    catch = hunt(mutation, seconds=60.0, remembers=True)
    assert catch.by, f"{mutation.name}: {catch.schedules} schedules and the crash matrix did not notice"


@pytest.mark.parametrize(
    ("what", "is_caught"),
    [
        ("pull-1: NameError: name 'gone' is not defined", False),
        ("operator-1: AttributeError: 'Letters' object has no attribute '_put'", False),
        ("pull-1: TypeError: f() missing 1 required positional argument: 'path'", False),
        ("messages/m was acknowledged, and never stored", True),
    ],
)
def test_a_bug_that_names_what_is_there_no_more_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch, what: str, is_caught: bool
) -> None:
    """The code has changed since it was planted: that it crashes is no proof of anything."""
    verdict = Verdict(0, "made up", [Violation("unexpected", "", what, 1.0)], Counter(), [])
    monkeypatch.setattr(hunting, "verdicts", lambda first: iter([("schedule 0", verdict)]))

    assert bool(hunting.search(1.0, "")["by"]) is is_caught


def test_the_long_proof_tries_first_what_caught_a_bug_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the beginning, a minute does not reach what catches some of them."""
    asked: list[dict[str, object]] = []

    def hunted(mutation: Mutation, **options: object) -> Catch:
        asked.append(options)
        return Catch(mutation.name, "schedule 1", "", 1, 0.1)

    monkeypatch.setattr(proof, "hunt", hunted)
    proof.catch_bugs(Console(quiet=True), planted()[:2], 1)

    assert asked == [{"remembers": True}] * 2


def test_the_table_at_the_end_says_what_caught_the_bugs() -> None:
    sources = ("schedule 1", "schedule 2", "crash matrix: claim first, complete 6", "tests/test_clock.py::test_a", "")
    console = Console(width=100, file=io.StringIO())

    proof.show(console, [proof.part_of_bugs([Catch("a bug", by, "", 1, 0.1) for by in sources])])

    shown = console.file.getvalue()  # type: ignore[attr-defined]
    rows = [line.strip("│ ").split("│") for line in shown.splitlines() if "bugs caught by" in line]
    assert {name.strip(): int(count) for name, count in rows} == {
        "bugs caught by schedules": 2,
        "bugs caught by the crash matrix": 1,
        "bugs caught by tests": 1,
        "bugs caught by nobody": 1,
    }
