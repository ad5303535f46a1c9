"""RetryPolicy: how long to wait before each attempt, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from .clock import Chance
from .errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff: base, 2·base, 4·base … up to `cap`. Full jitter spreads the retries over the whole delay."""

    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(seconds=300)
    max_attempts: int = 3
    jitter: bool = True

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise InvalidRequest(f"max_attempts must be at least 1, not {self.max_attempts}")
        if self.base < timedelta() or self.cap < self.base:
            raise InvalidRequest(f"retry_base {self.base} and retry_cap {self.cap} must satisfy 0 ≤ base ≤ cap")

    def can_retry(self, attempt: int) -> bool:
        """Whether another attempt follows after attempt number `attempt` (counted from 1) has failed."""
        return attempt < self.max_attempts

    def delay(self, attempt: int, chance: Chance | None = None) -> timedelta:
        """How long to wait after failed attempt number `attempt`; without `chance`, the longest possible delay."""
        # In seconds and with a bounded exponent: a timedelta overflows long before max_attempts is reached.
        seconds = min(self.cap.total_seconds(), self.base.total_seconds() * 2.0 ** min(attempt - 1, 64))
        longest = timedelta(seconds=seconds)
        if not self.jitter or chance is None:
            return longest
        return timedelta(seconds=chance.uniform(0.0, longest.total_seconds()))

    def schedule(self) -> list[timedelta]:
        """All delays in order, without jitter: the one after the first attempt, after the second, and so on."""
        return [self.delay(attempt) for attempt in range(1, self.max_attempts)]
