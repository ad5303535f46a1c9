"""Digest: which lines a bucket has, in any order; so that other lines in their place are noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from .plan import Plan
from .sorting import in_order


class LinesDigest:
    """Counts lines and adds up their hashes: equal lines have equal digests, however they are ordered."""

    def __init__(self) -> None:
        self.lines = 0
        self._sum = 0

    def sorted(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The lines in order. All of them were read, and so are in the digest, when this returns."""
        found = in_order(self._noted(lines))
        return chain(list(islice(found, 1)), found)

    def of(self, plan: Plan) -> str:
        """A digest of the lines and of what else decides the batches that are made of them."""
        seen = f"{self.lines} {self._sum:x} {plan.per_object} {plan.priority} {plan.shards}"
        return hashlib.sha256(seen.encode()).hexdigest()[:32]

    def _noted(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            self.lines += 1
            self._sum = (self._sum + int.from_bytes(hashlib.sha256(line).digest())) % 2**256
            yield line


class HashSums:
    """The sum of the first hashes of lines, and the xor of the second ones (fingerprint.py); `{sum} {xor}` as text."""

    def __init__(self) -> None:
        self._total = 0
        self._xor = 0

    def add(self, first: int, second: int) -> None:
        """Of one line, or of the lines of a bucket."""
        self._total += first
        self._xor ^= second

    def add_text(self, text: str) -> None:
        """Raises ValueError if the text is not two numbers."""
        first, second = text.split(" ")
        self.add(int(first), int(second))

    def __str__(self) -> str:
        return f"{self._total} {self._xor}"
