"""How often handlers start, held against the queue's rate: in no window more than it allows, by S3's clock."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from s3queue.limits import Rate
from s3queue.protocol.claim import Claim

from .machines import EPOCH


class Rates:
    """The starts of one queue's single messages; the lines of a batch are tried elsewhere."""

    def __init__(self, broken: Callable[[str, str], None]) -> None:
        self._broken = broken
        self.rate: Rate | None = None
        self._claimed: list[float] = []

    def start(self, claim: Claim) -> None:
        """A token is taken for each message, and it is used when S3 dated its claim."""
        if self.rate is None or claim.message.is_batch:
            return
        at = (claim.claimed_at - EPOCH).total_seconds()
        insort(self._claimed, at)
        # What counts is every window that this one is in, not only the one that it ends.
        near = [one for one in self._claimed if abs(one - at) < self.rate.window]
        most = max(sum(first <= one < first + self.rate.window for one in near) for first in near)
        if most > self.rate.calls:
            self._broken(
                "unexpected", f"{claim.path}: {most} claims within {self.rate.window} s, not {self.rate.calls}"
            )
