"""A world in which the real code runs: processes as greenlets, virtual time, one bucket, and faults at every request.

Every store call and every sleep hands control to the scheduler, which runs whatever is due next. All that is drawn is
drawn from one seed, so that a seed gives the same trace again.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from greenlet import getcurrent, greenlet

from s3queue.clock import RandomChance
from s3queue.errors import Conflict, Contended, QueueError, Unavailable

from .bucket import SimulatedStore
from .machines import EPOCH as EPOCH
from .machines import Process as Process
from .machines import ProcessClock as ProcessClock
from .machines import TrueClock

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


class Actor(greenlet):  # type: ignore[misc]  # it has no types of its own
    """A thread of a process."""

    world: World
    process: Process
    #: Which entry of the agenda is its next step; it may have been woken before its time.
    turn: int
    #: When the request was sent that its next steps belong to; None: each is a request of its own.
    sent_at: float | None = None


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
        self.store = SimulatedStore("simulation", clock=TrueClock(self), around=self._around)
        self.store.one_request = self._one_request
        #: Late requests that are still to land, and whether one is landing now.
        self.in_flight = 0
        self.is_landing = False
        self._heap: list[tuple[float, int, Actor | Callable[[], object]]] = []
        self._order = 0
        self._hub = getcurrent()
        self._actors: set[Actor] = set()
        self.nobody = Process("nobody")

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

        actor = Actor(body, parent=self._hub)
        actor.world, actor.process = self, process
        self._actors.add(actor)
        self._push(self.now + after, actor)

    def at(self, time: float, callback: Callable[[], object]) -> None:
        self._push(time, callback)

    def _push(self, time: float, item: Actor | Callable[[], object]) -> None:
        self._order += 1
        if isinstance(item, Actor):
            item.turn = self._order
        heapq.heappush(self._heap, (time, self._order, item))

    def wake(self, actor: Actor) -> None:
        """Let a thread that sleeps go on now."""
        self._push(self.now, actor)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until nothing is left to happen, `until` has come, or `done` says so."""
        heap = self._heap
        while heap and heap[0][0] <= until and not done():
            time, turn, item = heapq.heappop(heap)
            if isinstance(item, Actor):
                if turn != item.turn:
                    continue
                process = item.process
                if process.is_alive and process.paused_until > time:
                    self._push(process.paused_until, item)
                    continue
                self.now = max(self.now, time)
                if process.paused_until:
                    process.woke_at, process.paused_until = process.paused_until, 0.0
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
        if not isinstance(actor, Actor):
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
        if not isinstance(actor, Actor):
            return self._perform(self.nobody, operation, key, perform, self.now)
        process = actor.process
        if not process.is_alive:
            raise Crash
        process.requests += 1
        fault = self.faults.draw(process, operation, key)
        kind = fault.kind
        sent_at = self.now if actor.sent_at is None else actor.sent_at
        if kind == "crash before":
            self._die(process, operation, key, kind)
        if fault.pause:
            self.note(process, operation, key, f"stands still for {fault.pause:.1f} s")
            process.pause(self.now, fault.pause)
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

    @contextmanager
    def _one_request(self) -> Iterator[None]:
        actor = getcurrent()
        actor.sent_at = self.now
        try:
            yield
        finally:
            actor.sent_at = None

    def _perform(self, process: Process, operation: str, key: str, perform: Callable[[], Any], sent_at: float) -> Any:
        before = self.objects.get(key)
        former = dict(self.objects) if operation == "delete_many" else None
        try:
            answer = perform()
        except Conflict:
            self.note(process, operation, key, "refused")
            raise
        after = self.objects.get(key)
        self.note(process, operation, key, "" if answer is not None else "nothing there")
        if former is not None:
            for gone in sorted(former.keys() - self.objects.keys()):
                self.note(process, operation, gone, "deleted")
                self.watcher.performed(process, "delete", gone, sent_at, former[gone], None)
        elif before is not after:
            self.watcher.performed(process, operation, key, sent_at, before, after)
        self.watcher.stepped()
        return answer

    def _land(self, process: Process, operation: str, key: str, perform: Callable[[], Any], sent_at: float) -> None:
        self.in_flight -= 1
        self.is_landing = True
        try:
            self.note(process, operation, key, "lands late")
            self._perform(process, operation, key, perform, sent_at)
        except QueueError:
            return
        finally:
            self.is_landing = False

    def _die(self, process: Process, operation: str, key: str, kind: str) -> None:
        self.note(process, operation, key, kind)
        self.kill(process)
        raise Crash
