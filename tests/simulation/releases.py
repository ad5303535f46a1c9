"""What is judged of messages that an operator takes from their workers: from then on, those are zombies."""

from __future__ import annotations

from collections import Counter

from s3queue.protocol.claim import Claim

from .history import Call
from .ledger import Holding


class Releases:
    """Who was told by nobody that its claim is over, and how many starts that explains."""

    def __init__(self) -> None:
        #: ETags of leases that were taken from their owners.
        self._etags: set[str] = set()
        #: Path → how often that happened: each may cost a start that is no attempt.
        self.counts: Counter[str] = Counter()

    def written(self, call: Call | None, path: str, etag: str, held: list[Holding]) -> list[Holding]:
        """Note a lease that an operator has written over; returns who still holds a message for certain."""
        if call is None or call.name != "release":
            return held
        self._etags.add(etag)
        self.counts[path] += 1
        return [one for one in held if one.claim.path != path]

    def has(self, claim: Claim) -> bool:
        return claim.lease_etag in self._etags
