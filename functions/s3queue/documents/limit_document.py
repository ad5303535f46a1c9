"""LimitDocument: how many calls of a handler were granted lately, for one limit; `{queue}/limits/{key}.json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from s3queue.encoding import NONSENSE, as_list, as_whole, cut, dump, load_current
from s3queue.errors import CorruptState
from s3queue.limits import Rate
from s3queue.store import Object

#: A larger document is not read: it has a pair of numbers for each unit of a window.
LIMIT_BYTES = 64 * 1024
#: Seconds since 1970; what is later was forged, and would close the queue for good.
_LATEST = 2**40


@dataclass(frozen=True, slots=True)
class LimitDocument:
    """What was granted, in units of so many seconds of S3's clock, in the order of time."""

    unit: int
    #: (unit, tokens)
    grants: tuple[tuple[int, int], ...] = ()

    @property
    def latest(self) -> int:
        """The first second of the last grant's unit."""
        return self.grants[-1][0] * self.unit if self.grants else 0

    def free(self, rate: Rate, at: int) -> int:
        """How many tokens may be granted at this second."""
        return rate.calls - sum(count for unit, count in self.grants if _counts(rate, unit, at))

    def free_at(self, rate: Rate, at: int) -> int:
        """The first second from `at` on at which a token may be granted."""
        granted = [(unit, count) for unit, count in self.grants if _counts(rate, unit, at)]
        taken = sum(count for _, count in granted)
        for unit, count in granted:
            if taken < rate.calls:
                break
            taken -= count
            at = (unit + 1) * rate.unit - 1 + rate.usable + rate.window + rate.grain
        return at

    def granted(self, rate: Rate, at: int, tokens: int) -> LimitDocument:
        """The same with these tokens, and without grants that no window can count any more."""
        now = at // rate.unit
        # As of the first second of the unit: whoever grants next in it may have an earlier second in mind.
        kept = dict(pair for pair in self.grants if _counts(rate, pair[0], now * rate.unit))
        kept[now] = kept.get(now, 0) + tokens
        return LimitDocument(rate.unit, tuple(sorted(kept.items())))

    def without(self, rate: Rate, at: int, tokens: int) -> LimitDocument:
        """The same without tokens of this second that were never used."""
        if tokens <= 0:
            return self
        kept = dict(self.grants)
        if at // rate.unit in kept:
            kept[at // rate.unit] = max(0, kept[at // rate.unit] - tokens)
        return LimitDocument(rate.unit, tuple(sorted(kept.items())))

    def converted(self, rate: Rate, now: int) -> LimitDocument:
        """In the units of this rate: someone may have changed it. The other methods want it so.

        A grant counts as of the last second of its unit, but not later than now: grants of the future would close the
        limit until then.
        """
        if self.unit == rate.unit:
            return self
        counts: dict[int, int] = {}
        for unit, count in self.grants:
            first = unit * self.unit
            renamed = min(first + self.unit - 1, max(first, now)) // rate.unit
            counts[renamed] = counts.get(renamed, 0) + count
        return LimitDocument(rate.unit, tuple(sorted(counts.items())))

    def to_bytes(self, nonce: str) -> bytes:
        return dump({"unit_seconds": self.unit, "grants": [list(pair) for pair in self.grants], "nonce": nonce})

    @classmethod
    def read(cls, found: Object) -> LimitDocument:
        """`from_bytes` of an object that was opened; one that is too large is corrupt, and is not read."""
        return cls.from_bytes(found.read(LIMIT_BYTES), found.key)

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> LimitDocument:
        """Raises CorruptState, which names the key, if it is not a limit; NewerFormat if a newer version wrote it."""
        document = load_current(body, key)
        try:
            unit = as_whole(document["unit_seconds"], least=1, most=3600)
            return cls(unit, tuple(sorted(_pair(pair, unit) for pair in as_list(document.get("grants", [])))))
        except NONSENSE as error:
            raise CorruptState(f"{key} is not a limit: {cut(error)}") from None


def _pair(found: Any, unit: int) -> tuple[int, int]:
    at, tokens = as_list(found)
    return as_whole(at, most=_LATEST // unit), as_whole(tokens, most=2**31)


def _counts(rate: Rate, unit: int, at: int) -> bool:
    """Whether a token of this unit may be used in a window that a token of second `at` may be used in.

    It was granted at the last second of its unit at the latest, and may be used `usable` seconds later. The window of a
    token that is used at `at` begins `window - 1` seconds before; one more if it need not begin with a second.
    """
    return (unit + 1) * rate.unit - 1 + rate.usable > at - rate.window - rate.grain
