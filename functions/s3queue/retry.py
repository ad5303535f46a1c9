"""RetryPolicy: how long to wait before which attempt, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from .clock import Chance
from .errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff: base, 2·base, 4·base … up to `cap`; full jitter spreads a crowd over the whole delay."""

    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(seconds=300)
    max_attempts: int = 3
    jitter: bool = True

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise InvalidRequest(f"max_attempts {self.max_attempts}: at least 1")
        if self.base < timedelta() or self.cap < self.base:
            raise InvalidRequest(f"backoff base {self.base} and cap {self.cap}: 0 ≤ base ≤ cap")

    def can_retry(self, attempt: int) -> bool:
        """Whether another attempt follows when attempt number `attempt` (counted from 1) has failed."""
        return attempt < self.max_attempts

    def delay(self, attempt: int, chance: Chance | None = None) -> timedelta:
        """How long to wait after failed attempt number `attempt`; without `chance` the longest it can be."""
        # In seconds, and with a bounded exponent: a timedelta overflows long before max_attempts does.
        seconds = min(self.cap.total_seconds(), self.base.total_seconds() * 2.0 ** min(attempt - 1, 64))
        longest = timedelta(seconds=seconds)
        if not self.jitter or chance is None:
            return longest
        return timedelta(seconds=chance.uniform(0.0, longest.total_seconds()))

    def schedule(self) -> list[timedelta]:
        """All delays in order, without jitter: one between each attempt and the next."""
        return [self.delay(attempt) for attempt in range(1, self.max_attempts)]
