"""QoS: deliveries that Celery has not acknowledged yet, and how they end."""

from __future__ import annotations

from typing import NamedTuple

from kombu.transport import virtual

from s3queue.documents.record import Failure
from s3queue.protocol.claim import Claim

from .intake import Intake


class Held(NamedTuple):
    """A delivery that Celery has not acknowledged yet."""

    intake: Intake
    claim: Claim


class QoS(virtual.QoS):
    """Which deliveries are not acknowledged. Celery acknowledges in threads of its pool, too."""

    def ack(self, delivery_tag: str) -> None:
        if held := self.channel.put_down(delivery_tag):
            held.intake.complete(held.claim)
        self.forget(delivery_tag)
        self.channel.connection_woken()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if held := self.channel.put_down(delivery_tag):
            if requeue:
                held.intake.release(held.claim)
            else:
                held.intake.bury(held.claim, Failure("Reject", "the Celery task was rejected without being requeued"))
        self.forget(delivery_tag)
        self.channel.connection_woken()

    def forget(self, delivery_tag: str) -> None:
        """It has ended, or was never delivered: it takes no room."""
        # What was not delivered must not be counted as acknowledged: the prefetch limit would never hold again.
        if delivery_tag in self._delivered:
            self._quick_ack(delivery_tag)
