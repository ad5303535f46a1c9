"""Line: one line of a bill."""

from __future__ import annotations

from dataclasses import dataclass

from .prices import MILLION
from .workload import MONTH

SECONDS = MONTH.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a bill: what, how many, and at which price per how many."""

    what: str
    count: float
    price: float
    how: str = ""
    unit: str = "requests"
    per: int = MILLION

    @property
    def cost(self) -> float:
        return self.count * self.price / self.per
