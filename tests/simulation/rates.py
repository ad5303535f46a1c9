"""How often handlers start, held against the queue's rate: in no window more than it allows, by S3's clock."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable
from typing import Any

from s3queue.documents.limit_document import LimitDocument
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


class Grants:
    """The tokens of one limit, by what is written: nobody gives back more than it was granted, also if an answer is
    lost, and its write is gone by the time that it is looked for.
    """

    def __init__(self, broken: Callable[[str, str], None]) -> None:
        self._broken = broken
        #: Process and unit → what it has been granted, and has not given back.
        self._granted: Counter[tuple[str, int]] = Counter()

    def written(self, process: str, key: str, before: Any, after: Any) -> None:
        if "/limits/" not in key or after is None:
            return
        former = dict(LimitDocument.from_bytes(before.body, key).grants) if before else {}
        for unit, tokens in LimitDocument.from_bytes(after.body, key).grants:
            self._granted[process, unit] += tokens - former.get(unit, 0)
            if self._granted[process, unit] < 0:
                self._broken("unexpected", f"{process} gave back {key}'s tokens of {unit} twice")
