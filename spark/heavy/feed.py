"""Feed: the messages that a run starts next; more are claimed while the last ones still run.

A job takes what it starts from here and says when it has ended, in as many threads as it likes. So a slow message
holds up its own thread and nobody else's.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from s3queue.clock import Clock
from s3queue.errors import QueueError
from s3queue.protocol.claim import Claim

_log = logging.getLogger(__name__)
#: While messages run and no others are there, the queue is looked at this often: two LISTs.
LOOK_SECONDS = 5.0
#: A thread that waits for a message wakes up this often, to see whether the run is over.
WAKE_SECONDS = 0.2


class Source(Protocol):
    """Where messages come from: the driver."""

    def is_over(self) -> bool:
        """Whether nothing more should be started."""
        ...

    def claim_more(self, limit: int) -> list[Claim]:
        """Claim up to so many messages, and hold them."""
        ...

    def has_others_waiting(self) -> bool:
        """Whether something else has its turn once what was claimed has run."""
        ...


class Feed:
    """Messages for the threads of one job."""

    def __init__(self, source: Source, claims: Iterable[Claim], *, limit: int, clock: Clock) -> None:
        """`limit`: messages that are claimed at one time."""
        self._source = source
        self._limit = limit
        self._clock = clock
        self._pending = deque(claims)
        self._running = 0
        self._condition = threading.Condition()
        self._is_claiming = self._is_stopped = self._found_nothing = self._ended_since = False
        self._look_at = float("-inf")
        self._error: BaseException | None = None
        #: How many messages were taken.
        self.taken = 0
        #: Others are claimed as soon as fewer than so many are left; 0: when somebody waits for one. If it is None, the
        #: thread that needs one claims it itself: with a single thread there is nobody else to go on.
        self.low: int | None = None

    def take(self, choose: Callable[[Sequence[Claim]], int] = lambda pending: 1) -> list[Claim]:
        """The next messages to start, as many of those that wait as `choose` says; none: there are no more, or the run
        is over. Call `done` when they have ended.
        """
        with self._condition:
            while True:
                if self._is_stopped or self._source.is_over():
                    return []
                if self._pending:
                    count = choose(self._pending)
                    chosen = [self._pending.popleft() for _ in range(count)]
                    self._running += count
                    self.taken += count
                    if self.low and len(self._pending) < self.low:
                        self._claim_soon()
                    return chosen
                if self._source.has_others_waiting() or (
                    self._found_nothing and not self._running and not self._is_claiming
                ):
                    return []
                self._claim_soon()
                if not self._pending and not self._is_stopped:
                    self._condition.wait(0 if self.low is None else WAKE_SECONDS)

    def done(self, count: int = 1) -> None:
        """So many that were taken have ended."""
        with self._condition:
            self._running -= count
            self._ended_since = True
            self._condition.notify_all()

    @property
    def is_drained(self) -> bool:
        """Whether the last look found nothing, and nothing has ended since, of which there might be a retry."""
        return self._found_nothing and not self._ended_since

    def stop(self) -> None:
        """Hand out nothing more."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()

    def join(self) -> None:
        """Hand out nothing more, and wait until nobody claims for this feed."""
        with self._condition:
            self._is_stopped = True
            self._condition.wait_for(lambda: not self._is_claiming)

    def finish(self) -> list[Claim]:
        """What was neither taken nor `left` before. Raises what claiming raised, if it did so to the end."""
        self.join()
        if self._error:
            raise self._error
        return self.left()

    def left(self) -> list[Claim]:
        """What nobody takes any more, because the feed was stopped or the run is over; for whoever asks first: it need
        not wait for what still runs.
        """
        with self._condition:
            if not (self._is_stopped or self._source.is_over()):
                return []
            left = list(self._pending)
            self._pending.clear()
            return left

    def _claim_soon(self) -> None:
        if self._is_claiming or self._source.has_others_waiting() or self._clock.monotonic() < self._look_at:
            return
        self._is_claiming = True
        if self.low is None or not self._claims_beside():
            self._claim()

    def _claims_beside(self) -> bool:
        """Whether another thread claims now; if none can be started, it is the caller's to do, and the others wait."""
        try:
            threading.Thread(target=self._claim, name="claiming", daemon=True).start()
        except RuntimeError as error:
            _log.warning("thread not started, claiming in one that runs messages: %s", error)
            return False
        return True

    def _claim(self) -> None:
        claims: list[Claim] = []
        self._ended_since = False
        error: BaseException | None = None
        try:
            claims = self._source.claim_more(self._limit)
        except BaseException as raised:
            if self.low is None:
                raise
            error = raised
        finally:
            with self._condition:
                self._pending.extend(claims)
                self._found_nothing = not claims
                self._look_at = float("-inf") if claims else self._clock.monotonic() + LOOK_SECONDS
                self._is_claiming = False
                # A request that failed is made again at the next look: what is there to run need not wait for that.
                self._error = error
                self._is_stopped = self._is_stopped or not (error is None or isinstance(error, QueueError))
                self._condition.notify_all()
        if error:
            _log.warning("messages not claimed: %s", error)
