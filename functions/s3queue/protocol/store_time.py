"""StoreTime: when S3's `Date` will show an instant, so that a process wakes up exactly when something is over.

S3 tells its time in whole seconds. Every answer bounds how far its clock is ahead of this process's monotonic clock;
after a few answers the bound is much closer than a second. It only says when to ask: S3's answer decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from s3queue.clock import Clock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: An estimate can be a little early; then S3 is asked again after this time.
AGAIN_SECONDS = 0.05
_ROUNDING = 0.001


@dataclass(slots=True)
class StoreTime:
    """What the answers of one store have told about its clock."""

    clock: Clock
    #: The latest `Date` that was seen.
    seen_at: datetime = _EPOCH
    _ahead: float = float("-inf")

    def note(self, at: datetime) -> None:
        """`at` is the `Date` of an answer that has just come."""
        self.seen_at = max(self.seen_at, at)
        ahead = (at - _EPOCH).total_seconds() - self.clock.monotonic()
        # At least `at`, and not yet a second more. What contradicts that was told before the own clock stood still or
        # drifted, and is forgotten: else the estimate of a clock that runs fast would be ahead for good.
        self._ahead = ahead if self._ahead > ahead + 1.0 else max(self._ahead, ahead)

    def now(self) -> datetime:
        """The `Date` that an answer would show now, or the one before; the epoch if no answer has come yet."""
        passed = max(0.0, self.clock.monotonic() + self._ahead + _ROUNDING)
        return max(self.seen_at, _EPOCH + timedelta(seconds=int(passed)))

    def seconds_until(self, at: datetime) -> float:
        """Seconds until an answer will show a later `Date` than `at`; at least a moment, so that nobody loops."""
        shown_at = at.replace(microsecond=0) + timedelta(seconds=1)
        left = (shown_at - _EPOCH).total_seconds() - self.clock.monotonic() - self._ahead
        return max(AGAIN_SECONDS, left)
