"""PartitionRun: works on the messages of a partition while it is held, in a function and in a pull worker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from s3queue.clock import whole_second
from s3queue.errors import LeaseLost, Unavailable
from s3queue.flow.partition_hold import Hold
from s3queue.flow.partitions import hold_partition
from s3queue.paths import partition_path
from s3queue.protocol.claim import Claim

from .processor import AttemptEnding, Processor

_log = logging.getLogger(__name__)


def run_partition(
    processor: Processor, partition: str, *, should_stop: Callable[[], bool], count: Callable[[AttemptEnding], None]
) -> bool:
    """Take a partition, and work in this thread until nothing is left in it that can run; whether it could be taken.

    `should_stop` is asked before each message. `count` is told how each attempt ended, once that is committed.

    Raises:
        QueueError: it could not be taken, or what its last holder had committed could not be finished.
    """
    queue, was_held = processor.queue, False
    path, before = partition_path(partition), queue.held_back
    # Once more after it was given up: an event that came before found it held, and left its message to us.
    while hold := hold_partition(queue.leases, partition):
        was_held = True
        run = PartitionRun(processor, hold, should_stop=should_stop, count=count)
        run.work()
        if run.is_lost or queue.held_back != before or should_stop():
            if hold.has_left and queue.held_back == before:
                # Its other messages have had their events: someone must go on with it.
                queue.leases.remind(path, whole_second(queue.clock.now()))
            break
    if queue.held_back != before:
        queue.leases.remind(path, queue.free_at(queue.held_path))
    return was_held


class PartitionRun:
    """One held partition; safe for threads: whichever of them ends the last message commits, and goes on."""

    def __init__(
        self,
        processor: Processor,
        hold: Hold,
        *,
        should_stop: Callable[[], bool],
        count: Callable[[AttemptEnding], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_wanted`: whether the calling thread may still work; one that hung and was replaced may not."""
        self.hold = hold
        self._processor = processor
        self.should_stop = should_stop
        self._count = count
        self._is_wanted = is_wanted
        self._endings: list[AttemptEnding] = []
        self._mutex = threading.Lock()
        self._is_advancing = False
        #: Whether it is over: it was given up, or is another worker's.
        self.is_over = False
        self.is_lost = False

    def work(self) -> bool:
        """Work on messages until there is none for this thread; whether it is over with the partition, by this call.

        Raises:
            QueueError: what was committed could not be finished; whoever holds the partition next tries again.
        """
        while not self.is_over:
            if self.should_stop():
                self.hold.close()
            claims = self._taken()
            if claims:
                endings = self._process(claims)
                if not self._is_wanted():
                    return False  # its messages are another thread's
                with self._mutex:
                    self._endings.extend(endings)
                for claim, ending in zip(claims, endings, strict=True):
                    if ending == "lost":
                        self.hold.lose(claim)
                    self.hold.put_back(claim.path)  # if it has not ended
            elif not self._begin_advance():
                return False
            elif self._advance():
                return True
        return False

    def _taken(self) -> list[Claim]:
        """The messages of the next call: one, or as many as the queue collects."""
        claims: list[Claim] = []
        try:
            while len(claims) < self._most and (claim := self.hold.take()):
                claims.append(claim)
        except (LeaseLost, Unavailable) as error:
            # The hold is closed: what has ended is committed, and the partition is given up.
            _log.warning("message not read, partition given up: %s: %s", self.hold.partition, error)
        except BaseException:
            # Else a heartbeat would keep for ever what no thread works on.
            self._end(is_lost=True)
            raise
        return claims

    @property
    def _most(self) -> int:
        return 1 if self.hold.is_ordered else max(self._processor.queue.settings.collect, 1)

    def _process(self, claims: Sequence[Claim]) -> list[AttemptEnding]:
        try:
            if not (self._processor.definition.takes_list and self._processor.queue.settings.collect):
                return [self._processor.process(claim) for claim in claims]
            from .collecting import process_together

            return process_together(self._processor, claims)
        except BaseException:
            # As in `_taken`: what a handler must not raise, or what the library should not.
            self._end(is_lost=True)
            raise

    def _begin_advance(self) -> bool:
        with self._mutex:
            if self._is_advancing or self.is_over or not self.hold.is_done:
                return False
            self._is_advancing = True
            return True

    def _advance(self) -> bool:
        """Whether it is over now."""
        try:
            goes_on = self.hold.advance(stop=self.should_stop())
        except (LeaseLost, Unavailable) as error:
            _log.warning("partition lost, left to its next holder: %s: %s", self.hold.partition, error)
            self._end(is_lost=True)
        except BaseException:
            self._end(is_lost=True)
            raise
        else:
            self._tell(is_committed=True)
            self._is_advancing = False
            if not goes_on:
                self._end(is_lost=False)
        return self.is_over

    def _end(self, *, is_lost: bool) -> None:
        self.is_lost, self.is_over = is_lost, True
        self.hold.claim.end()
        self._tell(is_committed=False)

    def _tell(self, *, is_committed: bool) -> None:
        with self._mutex:
            endings, self._endings = self._endings, []
        for ending in endings:
            self._count(ending if is_committed else "lost")
