"""The long-lived players: a pull worker with a heartbeat, and sweepers. They call the real code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from s3queue.errors import QueueError, Unavailable
from s3queue.paths import partition_of
from s3queue.protocol.backlog import Backlog
from s3queue.protocol.claim import Claim
from s3queue.protocol.liveness import HeartbeatWriter, keep_beating
from s3queue.sweeper.sweeper import Sweeper
from s3queue.worker.partition_runs import PartitionRuns
from s3queue.worker.sweep_turns import BY_WORKER, SweepTurns

from .cast import Cast
from .machines import Process
from .threads import Flag
from .watched import WatchedQueue
from .world import Crash

#: In one schedule of so many, pull workers end leases that are over, as they do while a sweeper function is asleep.
ENDING_OF, ENDING = 13, 12


class PullWorker:
    """A long-lived worker: threads that pull, one heartbeat that keeps what they hold."""

    def __init__(
        self, cast: Cast, until: float, threads: int = 2, after: float = 0.0, twin: PullWorker | None = None
    ) -> None:
        """A `twin` is a worker that was given the same id: the two write one heartbeat."""
        self._cast = cast
        self._world = cast.world
        self._until = until
        self.process: Process = twin.process if twin else cast.process("pull")
        self._queue: WatchedQueue = twin._queue if twin else cast.queue(self.process)
        self._processor = cast.processor(self._queue, renew=self._renew)
        self._heartbeat = HeartbeatWriter(self._queue)
        self._heartbeat.changed = Flag(self._world)  # type: ignore[assignment]
        self._partitions = PartitionRuns(
            self._processor, self._heartbeat, count=lambda ending: None, is_wanted=lambda: True
        )
        for number in range(threads):
            self._world.spawn(self.process, self._pull, after=after + 1.0 + number * 0.1)
        self._world.spawn(self.process, self._beat, after=after + 0.5)
        if self._world.seed % ENDING_OF == ENDING:
            self._world.spawn(self.process, self._end_leases, after=after + 0.9)
        self.process.on_death = lambda: PullWorker(cast, until)

    def _renew(self, claim: Claim, timeout: timedelta | None) -> None:
        claim.check_alive()

    def _pull(self) -> None:
        backlog = Backlog(self._queue, partitions=True)
        while self._world.now < self._until:
            try:
                self._queue.refresh()
                while not self._queue.settings.paused and (path := self._cast.inbox.take()):
                    self.work(path, True)
                    self._queue.refresh()
                for candidate in backlog.drain():
                    self._queue.refresh()
                    if self._queue.settings.paused or self._world.now >= self._until:
                        break
                    held_back = self._queue.held_back
                    won = self.work(candidate.path, candidate.read_first, candidate.etag)
                    if won or partition_of(candidate.path) or self._queue.held_back == held_back:
                        self._queue.leases.forget(candidate.reminder)
                    backlog.report(won=won, is_hint=candidate.is_hint)
                while path := self._partitions.helpable():
                    self.work(path, True)
            except QueueError:
                pass
            self._world.sleep(2.0)

    def work(self, path: str, read_first: bool, etag: str = "") -> bool:
        if partition_of(path):
            return self._partitions.work(path)
        claim = self._queue.claim(path, read_first=read_first, etag=etag)
        won = claim is not None
        while claim:
            self._heartbeat.hold(claim)
            try:
                self._processor.process(claim)
            finally:
                self._heartbeat.drop(claim)
                self._cast.judge.drop(claim)
            claim = self._processor.claim_again(claim)
        return won

    def _end_leases(self) -> None:
        sweeper = self._sweeper()
        while self._world.now < self._until:
            report = sweeper.tick_leases(are_expected=True)
            self._cast.judge.let_go_burials(self.process)
            if report and report.error and not isinstance(report.error, QueueError):
                raise report.error
            self._world.sleep(min(2.0, (report and report.next_tick) or 2.0))

    def _sweeper(self) -> Sweeper:
        return Sweeper(queue=self._queue, dispatch=self._cast.inbox.accept, publishes_as=BY_WORKER)

    def _beat(self) -> None:
        keep_beating(
            self._heartbeat,
            lambda: self._heartbeat.beat({}),
            lambda: self._world.now >= self._until and not len(self._heartbeat),
        )


class SweepingWorker(PullWorker):
    """A pull worker that sweeps when it is its turn, as the real one does where no sweeper function is."""

    def __init__(self, cast: Cast, after: float = 0.0) -> None:
        super().__init__(cast, float("inf"), after=after)
        self._world.spawn(self.process, self._sweep, after=after + 0.8)
        self.process.on_death = None

    def _sweep(self) -> None:
        turns = SweepTurns(self._queue)
        sweeper = self._sweeper()
        while True:
            report = None
            with suppress(QueueError):
                if turns.is_ours():
                    if turns.is_new():
                        sweeper = self._sweeper()
                    sweeper.expect_leases()
                    report = sweeper.tick()
                    self._cast.judge.let_go_burials(self.process)
                if report and report.error:
                    raise report.error
            self._world.sleep(turns.pause(report.next_tick if report else None))


def sweeping(cast: Cast, dispatch: Callable[[Sequence[str]], None], every: float) -> Process:
    """A sweeper function; when it dies, the schedule starts the next one."""
    process = cast.sweeper = cast.process("sweeper")

    def send(paths: Sequence[str]) -> int:
        if not process.is_alive:
            raise Crash
        if cast.profile.pulls_only:
            return cast.inbox.accept(paths)
        if cast.profile.lost_events and not cast.is_over and cast.world.random.random() < cast.profile.lost_events:
            raise Unavailable("the dispatch was refused")
        cast.on_dispatch(paths)
        dispatch(paths)
        return len(paths)

    def run() -> None:
        check_runs = cast.check_runs() if cast.check_runs else None
        sweeper = Sweeper(queue=cast.queue(process), dispatch=send, check_runs=check_runs)
        while True:
            cast.on_tick()
            report = sweeper.tick(requests=cast.sweep_requests)
            cast.judge.let_go(process)
            if report:
                # Whatever an outage does not explain is a bug, and ends the schedule.
                if report.error and not isinstance(report.error, QueueError):
                    raise report.error
                cast.counts.update(report.endings)
                cast.counts["rescued"] += report.orphans
            if cast.profile.freezes:
                process.freeze(cast.world.now)
            next_tick = report.next_tick if report else None
            cast.world.sleep(every if next_tick is None else min(every, next_tick))
            process.thaw(cast.world.now)

    cast.world.spawn(process, run, after=cast.world.random.random() * every)
    process.on_death = lambda: sweeping(cast, dispatch, every)
    return process
