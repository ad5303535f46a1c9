"""PartitionRun: works on the messages of a partition while it is held, in a function and in a pull worker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from s3queue.clock import whole_second
from s3queue.errors import LeaseLost, Unavailable
from s3queue.flow.partition_hold import Hold
from s3queue.flow.partitions import hold_partition
from s3queue.flow.read_ahead import Readers
from s3queue.paths import partition_path
from s3queue.protocol.claim import Claim

from .processor import AttemptEnding, Processor

_log = logging.getLogger(__name__)
#: A thread waits so long, again and again, for another one that commits: after that there may be more for it to do.
COMMIT_WITHIN_SECONDS = 0.25


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
    with Readers(queue.worker_id) as readers:
        # Once more after it was given up: an event that came before found it held, and left its message to us.
        while hold := hold_partition(queue.leases, partition, readers):
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
        has_room: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_wanted`: whether the calling thread may still work; one that hung and was replaced may not. `has_room` is
        called when more messages were taken, or it is over: other threads may look again.
        """
        self.hold = hold
        self._processor = processor
        self.should_stop = should_stop
        self._count = count
        self._is_wanted = is_wanted
        self._has_room = has_room
        self._endings: list[AttemptEnding] = []
        self._mutex = threading.Condition()
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
            if self.hold.is_low and self._begin_advance(beside=True) and self._advance_beside():
                return True
            claims = self._taken()
            if claims:
                endings = self._process(claims)
                if not self._is_wanted():
                    return False  # its messages are another thread's
                self._note(endings)
                for claim, ending in zip(claims, endings, strict=True):
                    if ending == "lost":
                        self.hold.lose(claim)
                    self.hold.put_back(claim.path, claim)  # if it has not ended
            elif self._begin_advance():
                if self._advance():
                    return True
            elif not self._wait():
                return False
        return False

    def _taken(self) -> list[Claim]:
        """The messages of the next call: one, or as many as the queue collects."""
        claims: list[Claim] = []
        try:
            while (wanted := self._most - len(claims)) > 0 and (claim := self.hold.take(wanted - 1)):
                claims.append(claim)
        except (LeaseLost, Unavailable) as error:
            # The hold is closed: what has ended is committed, and the partition is given up.
            _log.warning("message not read, partition given up: %s: %s", self.hold.partition, error)
        except BaseException:
            # Else a heartbeat would keep for ever what no thread works on.
            self.lose()
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
            self.lose()
            raise

    def _begin_advance(self, *, beside: bool = False) -> bool:
        with self._mutex:
            if self._is_advancing or self.is_over or not (beside or self.hold.end_window()):
                return False
            self._is_advancing = True
            return True

    def _wait(self) -> bool:
        """Wait while another thread commits; False if none does, or that takes too long."""
        with self._mutex:
            if self.hold.is_ordered or not self._is_advancing or self.is_over:
                return False
            return self._mutex.wait(COMMIT_WITHIN_SECONDS) and not self.is_over

    def _advance(self) -> bool:
        """Whether it is over now."""
        try:
            goes_on = self.hold.advance(stop=self.should_stop())
        except BaseException as error:
            return self._lost_by(error)
        self._tell(len(self._endings))
        self._go_on()
        if not goes_on:
            self._end(is_lost=False)
        return self.is_over

    def _advance_beside(self) -> bool:
        """As `_advance`, while other threads work on their messages."""
        ended = len(self._endings)  # what ends from now on may belong to the next commit
        try:
            if self.hold.advance_beside():
                self._tell(ended)
                self._notify()
                self.hold.clear()
        except BaseException as error:
            return self._lost_by(error)
        self._go_on()
        return False

    def lose(self) -> None:
        """Nothing that was not committed counts; the lease runs out, and its next holder goes on."""
        self._end(is_lost=True)

    def _lost_by(self, error: BaseException) -> bool:
        self.lose()
        if not isinstance(error, (LeaseLost, Unavailable)):
            raise error
        _log.warning("partition lost, left to its next holder: %s: %s", self.hold.partition, error)
        return True

    def _go_on(self) -> None:
        self._is_advancing = False
        self._notify()

    def _notify(self) -> None:
        with self._mutex:
            self._mutex.notify_all()
        self._has_room()

    def _end(self, *, is_lost: bool) -> None:
        self.is_lost, self.is_over = is_lost, True
        self.hold.claim.end()
        self._tell(len(self._endings), is_committed=not is_lost)
        self._notify()

    def _note(self, endings: Sequence[AttemptEnding]) -> None:
        with self._mutex:
            self._endings.extend(endings)
        if self.is_over:
            # Another thread has committed these, or lost the partition.
            self._tell(len(self._endings), is_committed=not self.is_lost)

    def _tell(self, first: int, *, is_committed: bool = True) -> None:
        with self._mutex:
            endings, self._endings = self._endings[:first], self._endings[first:]
        for ending in endings:
            self._count(ending if is_committed else "lost")
