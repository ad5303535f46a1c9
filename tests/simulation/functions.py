"""The queue's worker function: containers that are woken by events and dispatches, frozen in between, and killed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from s3queue.errors import QueueError
from s3queue.protocol.backlog import Backlog
from s3queue.worker.invocation import WRAP_UP_SECONDS, InvocationRunner
from s3queue.worker.notifications import Notification as Notified

from .cast import Cast
from .machines import EPOCH

#: Lambda's own limit for one invocation, in seconds.
LONGEST = 900.0


@dataclass(frozen=True, slots=True)
class Notification:
    """What wakes a function: an S3 event, or a dispatch of the sweeper."""

    paths: tuple[str, ...]
    sent_at: float
    etag: str = ""
    is_dispatch: bool = False

    def read(self) -> list[Notified]:
        """As the worker function reads it."""
        at = None if self.is_dispatch else EPOCH + timedelta(seconds=self.sent_at)
        return [Notified(path=path, etag=self.etag, notified_at=at) for path in self.paths]


class Fleet:
    """As many containers as the queue's concurrency allows, one invocation at a time each."""

    def __init__(self, cast: Cast, size: int, *, drains: bool) -> None:
        self._cast = cast
        self._world = cast.world
        self._drains = drains
        self._idle: list[Container] = []
        self._waiting: deque[Notification] = deque()
        self.busy = 0
        for _ in range(size):
            self._idle.append(Container(cast))

    def event(self, path: str, etag: str) -> None:
        """S3 tells of a PUT: once, twice, late, or not at all."""
        chance, profile = self._world.random, self._cast.profile
        sent_at = self._world.now
        copies = 1
        if profile.lost_events and chance.random() < profile.lost_events:
            copies = 0
        elif profile.double_events and chance.random() < profile.double_events:
            copies = 2
        for _ in range(copies):
            late = profile.late_events and chance.random() < profile.late_events
            after = chance.random() * (10.0 if late else 0.5)
            self._world.at(sent_at + after, lambda: self.ring(Notification((path,), sent_at, etag)))

    def dispatch(self, paths: Sequence[str]) -> None:
        self.ring(Notification(tuple(paths), self._world.now, is_dispatch=True))

    def ring(self, notification: Notification) -> None:
        self._waiting.append(notification)
        self._wake()

    def _wake(self) -> None:
        while self._idle and self._waiting:
            container = self._idle.pop(0)
            container.process.thaw(self._world.now)
            notification = self._waiting.popleft()
            self.busy += 1
            container.process.on_death = lambda bell=notification: self._replace(bell)
            self._world.spawn(container.process, self._invoke, container, notification)

    def _replace(self, notification: Notification) -> None:
        """The container died. The platform starts another one, and may send the event again."""
        self.busy -= 1
        self._idle.append(Container(self._cast))
        if self._world.random.random() < 0.3:
            self._waiting.append(notification)
        self._wake()

    def _invoke(self, container: Container, notification: Notification) -> None:
        if self._cast.has_runners:
            container.invoke(notification)
        else:
            late_after = self._cast.settings.late_after.total_seconds()
            looks = notification.is_dispatch or self._world.now - notification.sent_at > late_after
            container.serve(notification.paths, looks=looks, drains=looks and self._drains, etag=notification.etag)
        self.busy -= 1
        if self._cast.profile.freezes:
            container.process.freeze(self._world.now)
        self._idle.append(container)
        self._wake()


class Container:
    """One process of the worker function."""

    def __init__(self, cast: Cast, role: str = "function") -> None:
        self._cast = cast
        self._stops_at = float("inf")
        self._invocations = 0
        self.process = cast.process(role)
        self.queue = cast.queue(self.process)
        self.processor = cast.processor(self.queue, should_stop=self._is_out_of_time)
        self._runner = InvocationRunner(self.queue, cast.definition, around_message=self._around_message)

    def out_of_time_at(self, at: float) -> None:
        self._stops_at = at

    def _is_out_of_time(self) -> bool:
        return self._cast.world.now >= self._stops_at

    @contextmanager
    def _around_message(self, path: str) -> Iterator[None]:
        yield
        self._cast.judge.let_go(self.process)

    def invoke(self, notification: Notification) -> None:
        """The real worker function, within its time; the platform ends it when that is over."""
        world, profile = self._cast.world, self._cast.profile
        seconds = LONGEST
        if profile.stops and world.random.random() < 0.3:
            spare = world.random.random() * 2.0
            seconds = self._cast.settings.handler_timeout.total_seconds() + WRAP_UP_SECONDS + spare
        ends_at = world.now + seconds
        self._invocations += 1
        number = self._invocations

        def end() -> None:
            if self._invocations == number and self.process.is_alive and not profile.exact:
                world.note(self.process, "", "", "killed at its time limit")
                world.kill(self.process)

        if seconds < LONGEST:
            world.at(ends_at, end)
        with suppress(QueueError):
            self._runner.run(notification.read(), lambda: ends_at - world.now)
        self._invocations += 1

    def serve(self, paths: Sequence[str], *, looks: bool, drains: bool, etag: str = "") -> None:
        """A function that only does what it is told: whatever it leaves undone, the sweeper has to find."""
        world = self._cast.world
        with suppress(QueueError):
            self.queue.refresh()
        stops = self._cast.profile.stops and world.random.random() < 0.3
        self._stops_at = world.now + world.random.random() * 2.0 if stops else float("inf")
        for path in paths:
            self._run(path, looks, etag)
        if drains:
            try:
                backlog = Backlog(self.queue, partitions=True)
                for candidate in backlog.drain():
                    if self._is_out_of_time():
                        return
                    won = self._run(candidate.path, candidate.read_first, candidate.etag)
                    backlog.report(won=won, is_hint=candidate.is_hint)
            except QueueError:
                return

    def _run(self, path: str, read_first: bool, etag: str) -> bool:
        try:
            outcome = self.processor.run(path, read_first=read_first, etag=etag)
        except QueueError:
            outcome = None
        self._cast.judge.let_go(self.process)
        return outcome is not None
