"""QueueGate: a queue's rate and breaker, asked before every claim. A queue without either has no gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from s3queue.protocol.access import QueueAccess

from .breaker import Probe, QueueBreaker
from .limiter import RateLimiter, Token


@dataclass(frozen=True, slots=True)
class QueuePermit:
    """The permission to claim one message and call its handler once."""

    breaker: QueueBreaker
    token: Token | None
    probe: Probe | None

    def confirm(self, at: datetime, fence: str) -> bool:
        is_in_time = self.token is None or self.token.confirm(at)
        return is_in_time and (self.probe is None or self.breaker.use(self.probe, at, fence))

    def cancel(self) -> None:
        if self.token:
            self.token.cancel()
        if self.probe:
            self.breaker.cancel(self.probe)


@dataclass(slots=True)
class QueueGate:
    """The limits of one queue, as one process knows them; safe for threads."""

    queue: QueueAccess
    limiter: RateLimiter = field(init=False)
    breaker: QueueBreaker = field(init=False)

    def __post_init__(self) -> None:
        self.limiter = RateLimiter(self.queue)
        self.breaker = QueueBreaker(self.queue)

    def refresh(self) -> None:
        """With `queue.json`: has someone opened or closed the breaker?"""
        if self.queue.settings.breaker:
            self.breaker.look()

    def wait(self, path: str) -> float:
        settings = self.queue.settings
        stopped = self.breaker.wait() if settings.breaker else 0.0
        return stopped or (self.limiter.wait(path) if settings.rate else 0.0)

    def wait_for_any(self) -> float:
        """Seconds for which no message at all can be claimed, as far as this process knows."""
        settings = self.queue.settings
        stopped = self.breaker.wait() if settings.breaker else 0.0
        return stopped or (self.limiter.wait("") if settings.rate and not settings.rate_key else 0.0)

    def is_stopped(self) -> bool:
        """Whether an operator has stopped the queue by its breaker: no time to wait for is known."""
        return self.queue.settings.breaker is not None and self.breaker.is_forced_open()

    def free_at(self, path: str) -> datetime:
        """When S3's clock will show that asking for this message makes sense, as far as this process knows."""
        if self.queue.settings.breaker and self.breaker.wait():
            return self.breaker.free_at()
        return self.limiter.free_at(path)

    def enter(self, path: str) -> QueuePermit | None:
        settings, probe = self.queue.settings, None
        if settings.breaker:
            entered = self.breaker.enter(path)
            if not entered:
                return None
            probe = entered if isinstance(entered, Probe) else None
        rate = settings.limit
        if rate is None:
            return QueuePermit(self.breaker, None, probe)
        token = self.limiter.take(path, rate)
        if token is None and probe:
            self.breaker.cancel(probe)
        return QueuePermit(self.breaker, token, probe) if token else None

    def enter_call(self, path: str) -> bool:
        """Whether the handler of a claimed message may be called once more, for the next line of a batch."""
        settings = self.queue.settings
        if settings.breaker and not self.breaker.permits_call(path):
            return False
        rate = settings.limit
        if rate is None:
            return True
        token = self.limiter.take(path, rate)
        if token is None:
            return False
        # No answer of S3 dates this call: be early by the second that the estimate may be late. A rate per second has
        # none to spare: there, the call may fall into the second after that of its token.
        if token.confirm(self.limiter.now() + timedelta(seconds=min(1, rate.usable))):
            return True
        token.cancel()
        return False

    def ended(self, fence: str, error: BaseException | str | None) -> None:
        """A call of the handler for the claim of this fence ended: with this error, or well."""
        self.breaker.ended(fence, error)

    def gave_back(self, fence: str) -> None:
        """A claimed message has ended, or was given back, and its handler has decided nothing."""
        self.breaker.gave_back(fence)
