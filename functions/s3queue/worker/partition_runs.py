"""PartitionRuns: the partitions that a pull worker holds. Its threads share the messages of one that has no order."""

from __future__ import annotations

import threading
from collections.abc import Callable

from s3queue.flow.partition_hold import Hold
from s3queue.flow.partitions import hold_partition
from s3queue.flow.read_ahead import Readers
from s3queue.paths import partition_of
from s3queue.protocol.claim import Claim
from s3queue.protocol.liveness import HeartbeatWriter

from .partition_run import PartitionRun
from .processor import AttemptEnding, Processor

#: After this long a partition is given up, so that other partitions and messages have their turn.
TURN_SECONDS = 30.0


class PartitionRuns:
    """Safe for threads."""

    def __init__(
        self,
        processor: Processor,
        heartbeat: HeartbeatWriter,
        *,
        count: Callable[[AttemptEnding], None],
        is_wanted: Callable[[], bool],
        turn: float = TURN_SECONDS,
    ) -> None:
        """`count` is told how each attempt ended; `is_wanted` whether the calling thread may still work."""
        self._processor = processor
        self._heartbeat = heartbeat
        self._count = count
        self._is_wanted = is_wanted
        self._turn = turn
        self._runs: dict[str, PartitionRun] = {}
        self._readers = Readers(processor.queue.worker_id)
        #: Partitions that threads are about to take.
        self._taking = 0
        self._mutex = threading.Condition()

    def __len__(self) -> int:
        return len(self._runs)

    def wait(self, seconds: float) -> bool:
        """Wait until one of the held partitions may have a message for another thread, so long at most; False, at once,
        if none is held.
        """
        with self._mutex:
            if not self._runs and not self._taking:
                return False
            self._mutex.wait(seconds)
            return True

    def wake(self) -> None:
        """Let all that wait look again."""
        with self._mutex:
            self._mutex.notify_all()

    def end(self) -> None:
        """No thread works on partitions any more, and none will until the worker is started again."""
        self._readers.end()

    def helpable(self) -> str | None:
        """A held partition with a message that another thread could run now."""
        with self._mutex:
            runs = list(self._runs.values())
        # Not in the mutex: a hold may wait for an answer of S3, and the other partitions must not wait for that.
        return next((run.hold.claim.path for run in runs if run.hold.has_room), None)

    def work(self, path: str) -> bool:
        """Work on a partition, with the threads that do so already, or take it; False if it could not be taken.

        Raises:
            QueueError: it could not be taken, or what was committed could not be finished.
        """
        partition = partition_of(path)
        run = self._runs.get(partition) or self._take(partition)
        was_held, queue = run is not None, self._processor.queue
        while run is not None:
            held_back = queue.held_back
            try:
                run.work()
            finally:
                # A thread that hung and was replaced must not take it again: nobody would commit what it runs.
                is_ours = self._is_wanted() and run.is_over and self._end(run)
            # Once more, unless its turn is over: another worker that found it held has left its message to this one.
            goes_on = is_ours and not run.is_lost and queue.held_back == held_back and not run.should_stop()
            run = self._take(partition) if goes_on else None
        return was_held

    def lose(self, claim: Claim) -> None:
        """The handler of this message hung, and that cannot be recorded: its partition is left to run out, else nothing
        of it would ever run here again. Whoever takes it over charges the attempt.  [P5] [P6]
        """
        run = self._runs.get(partition_of(claim.path))
        if run and run.hold.claim is claim.within:
            run.lose()
            self._end(run)

    def _take(self, partition: str) -> PartitionRun | None:
        with self._mutex:
            self._taking += 1
        try:
            hold = hold_partition(self._processor.queue.leases, partition, self._readers)
            return None if hold is None else self._begin(partition, hold)
        finally:
            with self._mutex:
                self._taking -= 1
                self._mutex.notify_all()

    def _begin(self, partition: str, hold: Hold) -> PartitionRun:
        clock = self._processor.queue.clock
        until = clock.monotonic() + self._turn
        run = PartitionRun(
            self._processor,
            hold,
            should_stop=lambda: self._should_stop() or clock.monotonic() > until,
            count=self._count,
            is_wanted=self._is_wanted,
            has_room=self.wake,
        )
        self._heartbeat.hold(hold.claim)
        with self._mutex:
            self._runs[partition] = run
        return run

    def _should_stop(self) -> bool:
        return self._processor.should_stop() or self._processor.queue.settings.paused

    def _end(self, run: PartitionRun) -> bool:
        """Whether this call ended it: of several threads, one takes the partition again."""
        self._heartbeat.drop(run.hold.claim)
        with self._mutex:
            return self._runs.get(run.hold.partition) is run and bool(self._runs.pop(run.hold.partition))
