"""Violations: which promise was broken, and how."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: lost, duplicate outcome, double lease, or unexpected."""

    kind: str
    promise: str
    what: str
    at: float

    def __str__(self) -> str:
        return f"{self.kind} {self.promise} at {self.at:.2f} s: {self.what}".replace("  ", " ")


KINDS = {
    "P1": "lost",
    "P2": "double live lease",
    "P3": "duplicate outcome",
    "P4": "unexpected",
    "P5": "unexpected",
    "P6": "lost",
    "P7": "lost",
    "P8": "unexpected",
    "P9": "unexpected",
    "P10": "unexpected",
    "unexpected": "unexpected",
}
