"""QueueGate: a queue's rate and breaker, asked before every claim. A queue without either has no gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from s3queue.protocol.access import QueueAccess

from .limiter import RateLimiter, Token


@dataclass(frozen=True, slots=True)
class QueuePermit:
    """The permission to claim one message and call its handler once."""

    token: Token | None

    def confirm(self, at: datetime) -> bool:
        return self.token is None or self.token.confirm(at)

    def cancel(self) -> None:
        if self.token:
            self.token.cancel()


@dataclass(slots=True)
class QueueGate:
    """The limits of one queue, as one process knows them; safe for threads."""

    queue: QueueAccess
    limiter: RateLimiter = field(init=False)

    def __post_init__(self) -> None:
        self.limiter = RateLimiter(self.queue)

    def wait(self, path: str) -> float:
        return self.limiter.wait(path) if self.queue.settings.rate else 0.0

    def wait_for_any(self) -> float:
        """Seconds for which no message at all can be claimed, as far as this process knows."""
        settings = self.queue.settings
        return self.limiter.wait("") if settings.rate and not settings.rate_key else 0.0

    def free_at(self, path: str) -> datetime:
        """When S3's clock will show that asking for this message makes sense, as far as this process knows."""
        return self.limiter.free_at(path)

    def enter(self, path: str) -> QueuePermit | None:
        if not self.queue.settings.rate:
            return QueuePermit(None)
        token = self.limiter.take(path)
        return QueuePermit(token) if token else None

    def enter_call(self, path: str) -> bool:
        """Whether the handler of a claimed message may be called once more, for the next line of a batch."""
        permit = self.enter(path)
        if permit is None or permit.token is None:
            return permit is not None
        # No answer of S3 dates this call: be early by the second that the estimate may be late.
        late = timedelta(seconds=min(1, permit.token.rate.usable))
        return permit.confirm(self.limiter.now() + late)
