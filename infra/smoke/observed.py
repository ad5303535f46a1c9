"""Observed: what this process asks of S3, counted, and how far its clock is from S3's."""

from __future__ import annotations

import threading
import time
from collections import Counter
from email.utils import parsedate_to_datetime
from typing import Any


class Observed:
    """Counts every request that its clients send, repetitions included, and learns from the `Date` of every answer."""

    def __init__(self) -> None:
        #: Operation, as `PutObject`, → requests.
        self.requests: Counter[str] = Counter()
        self._mutex = threading.Lock()
        self._asked = threading.local()
        #: S3's clock is ahead of ours by more than the first and by less than the second.
        self._ahead = (float("-inf"), float("inf"))

    def watch(self, client: Any) -> None:
        """Take notice of a boto3 client for S3."""
        client.meta.events.register("before-send.s3", self._sent)
        client.meta.events.register("after-call.s3", self._answered)

    @property
    def ahead_seconds(self) -> float:
        """How far S3's clock is ahead of ours, as well as whole seconds tell; 0 before the first answer."""
        least, most = self._ahead
        return (least + most) / 2 if least > float("-inf") else 0.0

    @property
    def unsure_seconds(self) -> float:
        """How wrong that may be, either way."""
        least, most = self._ahead
        return abs(most - least) / 2 if least > float("-inf") else float("inf")

    def heard(self, asked_at: float, answered_at: float, said: float) -> None:
        """S3 said this whole second between these two instants of ours."""
        with self._mutex:
            least, most = self._ahead
            self._ahead = max(least, said - answered_at), min(most, said + 1 - asked_at)

    def _sent(self, event_name: str, **_: Any) -> None:
        self._asked.at = time.time()
        with self._mutex:
            self.requests[event_name.rpartition(".")[2]] += 1

    def _answered(self, parsed: Any, **_: Any) -> None:
        said = parsed.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if said and (asked_at := getattr(self._asked, "at", None)):
            self.heard(asked_at, time.time(), parsedate_to_datetime(said).timestamp())
