"""A world in which the real code runs: processes as greenlets, virtual time, one bucket, and faults at every request.

Every store call and every sleep hands control to the scheduler, which runs whatever is due next. All that is drawn is
drawn from one seed, so that a seed gives the same trace again.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from greenlet import getcurrent, greenlet

from s3queue.clock import PassedTime, RandomChance
from s3queue.errors import AccessDenied, Conflict, Contended, Unavailable, Unreadable
from s3queue.store import Object, Page, Written
from s3queue.stores.memory import MemoryStore

EPOCH = datetime(2026, 11, 16, 10, 15, tzinfo=UTC)
QUEUE = "q"


class Crash(BaseException):
    """The process is gone. Not an Exception: nothing in it may catch this and go on."""


@dataclass(slots=True)
class Fault:
    """What happens to one request. `kind` is "" when it is answered as it should be."""

    kind: str = ""
    #: Seconds until the request reaches the store, and until its answer is back.
    there: float = 0.0
    back: float = 0.0
    #: Seconds for which the whole process stands still before the request is sent.
    pause: float = 0.0
    #: In the pause the whole machine is suspended: its monotonic clock stands still as well.
    suspends: bool = False
    #: Seconds by which the process's wall clock is set forward or back at this request.
    wall_step: float = 0.0
    #: For a request that lands late: how much later.
    later: float = 0.0


class Faults(Protocol):
    """Decides about every request; drawn from a seed, or scripted."""

    def draw(self, process: Process, operation: str, key: str) -> Fault: ...


class Watcher(Protocol):
    """Sees every request that the store carries out, at the instant when it does."""

    def performed(
        self, process: Process, operation: str, key: str, sent_at: float, before: Any, after: Any
    ) -> None: ...
    def stepped(self) -> None: ...
    def hold(self, process: Process, claim: Any) -> None: ...
    def let_go(self, process: Process) -> None: ...
    def broken(self, promise: str, what: str) -> None: ...


@dataclass(eq=False, slots=True)
class Process:
    """One operating-system process: it has clocks of its own, it can stand still, and it can die."""

    name: str
    #: Wall clock: ahead of the true time by this many seconds. Lease logic must not care.
    skew: float = 0.0
    #: Monotonic clock: where it started, and how fast it runs.
    started: float = 0.0
    rate: float = 1.0
    #: Since when the machine has been frozen or suspended, and for how long it was before: for so long its monotonic
    #: clock stood still.
    frozen_at: float | None = None
    stood_still: float = 0.0
    is_alive: bool = True
    paused_until: float = 0.0
    died_at: float = 0.0
    #: Requests sent so far; scripted faults count by them.
    requests: int = 0
    on_death: Callable[[], object] | None = None
    clocks: list[PassedTime] = field(default_factory=list)

    def freeze(self, now: float) -> None:
        if self.frozen_at is None:
            self.frozen_at = now

    def thaw(self, now: float) -> None:
        if self.frozen_at is not None:
            self.stood_still += now - self.frozen_at
            self.frozen_at = None

    def set_wall_clock(self, by: float) -> None:
        """Between two looks of the process at its clocks, it can be set back or the machine can freeze, not both: that
        cannot be told from neither, see `PassedTime`.
        """
        for change in (0.0, by if self.frozen_at is None else 0.0):
            self.skew += change
            for clock in self.clocks:
                clock.seconds()

    def raw_monotonic(self, now: float) -> float:
        at = now if self.frozen_at is None else self.frozen_at
        return self.started + (at - self.stood_still) * self.rate


class _Actor(greenlet):  # type: ignore[misc]  # it has no types of its own
    """A thread of a process."""

    process: Process


class ProcessClock:
    """An `s3queue.clock.Clock` of one process: the real code, over this process's raw clocks."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._passed = PassedTime(
            lambda: process.raw_monotonic(world.now), lambda: EPOCH.timestamp() + world.now + process.skew
        )
        process.clocks.append(self._passed)

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._world.now + self._process.skew)

    def monotonic(self) -> float:
        return self._passed.seconds()

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)


class _TrueClock:
    """S3's clock."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._world.now)

    def monotonic(self) -> float:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        raise AssertionError("S3 does not sleep")


class SimulatedStore(MemoryStore):
    """A bucket that can also be uploaded to in parts, with small pages if asked, and objects that nobody may read."""

    page = 1000
    denied = ""
    #: (key, ETag) of what was moved to an archive: it can be listed and described, but neither read nor copied.
    archived: tuple[str, str] | None = None

    def list(self, prefix: str, *, after: str = "", delimiter: str = "", limit: int = 1000) -> Page:
        return super().list(prefix, after=after, delimiter=delimiter, limit=min(limit, self.page))

    def open(self, key: str, *, if_match: str | None = None) -> Object | None:
        if key == self.denied:
            raise AccessDenied(f"403 {key}")
        found = super().open(key, if_match=if_match)
        if found and (key, found.etag) == self.archived:
            raise Unreadable(f"403 {key}: InvalidObjectState")
        return found

    def copy(self, source: str, target: str, **options: Any) -> Written | None:
        if (source, options.get("if_match")) == self.archived:
            raise Unreadable(f"403 {source}: InvalidObjectState")
        return super().copy(source, target, **options)

    def upload(self, key: str, body: bytes, *, seconds: float) -> None:
        """Complete a multipart upload that was started so long ago; S3 dates the object by its start."""

        def perform() -> Written:
            written = self._write(key, body, {}, "application/octet-stream")
            stored = self._objects[key]
            started_at = stored.modified_at - timedelta(seconds=int(seconds))
            self._objects[key] = replace(stored, modified_at=started_at)
            return written

        self._request("put", key, perform)


@dataclass(eq=False)
class World:
    """The scheduler, the bucket, and the time that passes."""

    seed: int
    faults: Faults
    watcher: Watcher
    now: float = 0.0
    #: (time, process, operation, key, what happened)
    trace: list[tuple[float, str, str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.chance = RandomChance(self.random)
        self.store = SimulatedStore("simulation", clock=_TrueClock(self), around=self._around)
        #: Late requests that are still to land.
        self.in_flight = 0
        self._heap: list[tuple[float, int, _Actor | Callable[[], object]]] = []
        self._order = 0
        self._hub = getcurrent()
        self._actors: set[_Actor] = set()
        self._nobody = Process("nobody")

    @property
    def objects(self) -> dict[str, Any]:
        """What the bucket holds, read without a request: for the judge, not for the players."""
        return self.store._objects

    # Scheduling

    def spawn(self, process: Process, function: Callable[..., object], *arguments: Any, after: float = 0.0) -> None:
        """Run a function as a thread of the process."""

        def body() -> None:
            try:
                function(*arguments)
            except Crash:
                pass
            except Exception as error:
                self.watcher.broken("unexpected", f"{process.name}: {type(error).__name__}: {error}")
            finally:
                self._actors.discard(actor)

        actor = _Actor(body, parent=self._hub)
        actor.process = process
        self._actors.add(actor)
        self._push(self.now + after, actor)

    def at(self, time: float, callback: Callable[[], object]) -> None:
        self._push(time, callback)

    def _push(self, time: float, item: _Actor | Callable[[], object]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (time, self._order, item))

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until nothing is left to happen, `until` has come, or `done` says so."""
        heap = self._heap
        while heap and heap[0][0] <= until and not done():
            time, _, item = heapq.heappop(heap)
            if isinstance(item, _Actor):
                process = item.process
                if process.is_alive and process.paused_until > time:
                    self._push(process.paused_until, item)
                    continue
                self.now = max(self.now, time)
                if process.paused_until:
                    process.paused_until = 0.0
                    process.thaw(self.now)
                item.switch()
            else:
                self.now = max(self.now, time)
                item()
        if not done():
            self.now = max(self.now, until)

    def close(self) -> None:
        """End every thread; the greenlets of a schedule must not outlive it."""
        while self._actors:
            actor = self._actors.pop()
            actor.process.is_alive = False
            if actor:  # started, and not ended
                actor.throw(Crash)
        self._heap.clear()

    def sleep(self, seconds: float) -> None:
        actor = getcurrent()
        if not isinstance(actor, _Actor):
            raise AssertionError("only a process can sleep")
        if not actor.process.is_alive:
            raise Crash
        self._push(self.now + seconds, actor)
        self._hub.switch()
        if not actor.process.is_alive:
            raise Crash

    def kill(self, process: Process) -> None:
        """kill -9: the other threads of the process never come to their next step."""
        if process.is_alive:
            process.is_alive = False
            process.died_at = self.now
            self.watcher.let_go(process)
            if process.on_death:
                process.on_death()

    def note(self, process: Process, operation: str, key: str, what: str) -> None:
        self.trace.append((self.now, process.name, operation, key, what))

    # Requests

    def _around(self, operation: str, key: str, perform: Callable[[], Any]) -> Any:
        actor = getcurrent()
        if not isinstance(actor, _Actor):
            return self._perform(self._nobody, operation, key, perform, self.now)
        process = actor.process
        if not process.is_alive:
            raise Crash
        process.requests += 1
        fault = self.faults.draw(process, operation, key)
        kind = fault.kind
        sent_at = self.now
        if kind == "crash before":
            self._die(process, operation, key, kind)
        if fault.pause:
            self.note(process, operation, key, f"stands still for {fault.pause:.1f} s")
            process.paused_until = max(process.paused_until, self.now + fault.pause)
            if fault.suspends:
                process.freeze(self.now)
        if fault.wall_step:
            process.set_wall_clock(fault.wall_step)
            self.note(process, operation, key, f"wall clock set by {fault.wall_step:+.1f} s")
        self.sleep(fault.there)
        if kind in ("lost", "contended", "late"):
            if kind == "late":
                self.in_flight += 1
                self.at(self.now + fault.later, lambda: self._land(process, operation, key, perform, sent_at))
            self.note(process, operation, key, kind)
            self.sleep(fault.back)
            raise Contended(f"409 {key}") if kind == "contended" else Unavailable(f"{operation} {key}: no answer")
        answer, conflict = None, None
        try:
            answer = self._perform(process, operation, key, perform, sent_at)
        except Conflict as error:
            conflict = error
        if kind == "crash after":
            self._die(process, operation, key, kind)
        if fault.back:
            self.sleep(fault.back)
        if kind == "answer lost":
            self.note(process, operation, key, kind)
            raise Unavailable(f"{operation} {key}: the answer was lost")
        if kind == "retried" and not conflict:
            self.note(process, operation, key, kind)
            raise Conflict(f"{operation} {key}: 412 to the SDK's own retry", retried=True)
        if conflict:
            raise conflict
        return answer

    def _perform(self, process: Process, operation: str, key: str, perform: Callable[[], Any], sent_at: float) -> Any:
        before = self.objects.get(key)
        try:
            answer = perform()
        except Conflict:
            self.note(process, operation, key, "refused")
            raise
        after = self.objects.get(key)
        self.note(process, operation, key, "" if answer is not None else "nothing there")
        if before is not after:
            self.watcher.performed(process, operation, key, sent_at, before, after)
        self.watcher.stepped()
        return answer

    def _land(self, process: Process, operation: str, key: str, perform: Callable[[], Any], sent_at: float) -> None:
        self.in_flight -= 1
        try:
            self.note(process, operation, key, "lands late")
            self._perform(process, operation, key, perform, sent_at)
        except Conflict:
            return

    def _die(self, process: Process, operation: str, key: str, kind: str) -> None:
        self.note(process, operation, key, kind)
        self.kill(process)
        raise Crash
