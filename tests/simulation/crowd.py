"""Crowds and crashes: schedules in which limits are small and time is judged, not only the end.

A crowded queue has pages of three keys, sweeps of ten requests, more to dispatch than its worker may get at once,
strangers under its root, a lease that nobody may read, a lock that is held for long, and two dozen messages at work
that lie before all others; the sweeper is killed again and again. One in ten has hundreds of messages. In a prompt
one, only workers crash, and the sweeper is awake; or pull workers sweep in turns, and the one that sweeps crashes as
often as the others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial

from s3queue.errors import AccessDenied, QueueError
from s3queue.protocol.locks import Lock
from s3queue.sweeper import cleanup, hand_over

from .actors import SweepingWorker
from .cast import Cast
from .faults import DrawnFaults, Profile
from .judge import Judge
from .world import QUEUE, Fault, Process, World

#: Keys in a page, and requests in a sweep, of a crowded queue.
PAGE = 3
REQUESTS = 10
#: Messages at work that lie before all others in every LIST.
HELD = 24
#: Paths in one dispatch, and how long a lock is kept that nobody writes: small, so that both matter.
DISPATCH_SIZE = 2
LOCK_KEPT = timedelta(seconds=5)
LOCK = "long"
#: A prompt schedule: seconds beyond the visibility timeout until an expired lease is over. By S3's clock it is three;
#: its dates are whole seconds, and requests take a while.
REDELIVERED_WITHIN = 4.5
#: If the one that swept died, another one has to find that out first.
TAKEN_OVER_WITHIN = 7.0
#: Seconds that a crowd may need for everything but what is held.
PATIENCE = 150.0
#: In these, of so many schedules, the crowd has hundreds of messages, and that much time.
HUNDREDS, HUNDREDS_OF = 207, 400
NAMES, LONG_PATIENCE = 200, 400.0

CROWDED = Profile(name="crowded", lost_events=0.9, pulls=0.0)
TURNS = Profile(
    name="turns",
    lost_events=1.0,
    pulls_only=True,
    skew=100.0,
    long_handlers=0.6,
)
PROMPT = Profile(name="prompt", kinds=(("crash before", 0.02), ("crash after", 0.04)), pulls=0.5)


@contextmanager
def limits(profile: Profile) -> Iterator[None]:
    """Small limits while a crowded schedule runs."""
    kept = hand_over.DISPATCH_SIZE, cleanup.LOCK_KEPT
    if profile is CROWDED:
        hand_over.DISPATCH_SIZE, cleanup.LOCK_KEPT = DISPATCH_SIZE, LOCK_KEPT
    try:
        yield
    finally:
        hand_over.DISPATCH_SIZE, cleanup.LOCK_KEPT = kept


def has_hundreds(world: World) -> bool:
    return world.seed % HUNDREDS_OF == HUNDREDS


class QuickFaults(DrawnFaults):
    """Only workers crash; requests are quick, so that time can be judged."""

    def __init__(self, profile: Profile, chance: random.Random) -> None:
        super().__init__(profile, chance)
        self._latency = 0.02

    def draw(self, process: Process, operation: str, key: str) -> Fault:
        if process.name.startswith(("function", "pull")):
            return super().draw(process, operation, key)
        kind = "lost" if self.loses(operation, key) else ""
        return Fault(kind=kind, there=self._chance.random() * self._latency)


class Crowd:
    """What makes a queue crowded, and what must hold for it."""

    def __init__(self, world: World, judge: Judge, cast: Cast) -> None:
        self.world = world
        self.judge = judge
        self.cast = cast
        self._held: set[str] = set()
        self._dispatched = 0
        self._patience = LONG_PATIENCE if has_hundreds(world) else PATIENCE

    def names(self) -> int:
        """How many names producers PUT."""
        drawn: int = self.world.random.choice((12, 24))
        return NAMES if has_hundreds(self.world) else drawn

    def begin(self) -> None:
        world = self.world
        world.store.page = PAGE
        self.cast.sweep_requests = REQUESTS
        self.cast.on_tick, self.cast.on_dispatch = self._tick_begins, self._dispatch
        world.at(world.random.uniform(4.0, 10.0), self.kill_sweepers)
        for number in range(2 * PAGE):
            world.store.put(f"{QUEUE}/a-stranger-{number}", b"")
        self._hold_many(self.cast.process("holder"))

    def _hold_many(self, process: Process) -> None:
        queue = self.cast.queue(process)
        bodies = b'{"id": "held", "takes": 0.1, "plan": "k"}'

        def hold() -> None:
            lock = Lock(queue.store, queue.keys.lock(LOCK), ttl=3600, clock=queue.clock, chance=queue.chance)
            assert lock.acquire()
            claims = []
            for number in range(HELD):
                path = f"messages/a{number:02d}"
                self._held.add(path)
                queue.store.put(queue.keys.message(path), bodies)
                if claim := queue.claim(path, read_first=True, timeout=3600):
                    claims.append(claim)
            self.world.store.refused[queue.keys.lease("messages/a00")] = AccessDenied
            self.world.sleep(max(0.0, self._patience - self.world.now))
            self._check()
            self.world.store.refused.clear()
            for claim in claims:
                with suppress(QueueError):
                    queue.release(claim)
                self.judge.drop(claim)

        self.world.spawn(process, hold)

    def _check(self) -> None:
        """Whatever is held for long must not keep the sweeper from what lies behind it."""
        if f"{QUEUE}/locks/{LOCK}" not in self.world.objects:
            self.judge.broken("unexpected", "a lock was deleted while it was held")
        for path, life in self.judge.ledger.present.items():
            if path not in self._held and not life.record:
                self.judge.broken("P6", f"{path} starves behind {HELD} messages that are held")

    def kill_sweepers(self) -> None:
        """The platform ends a sweeper in the middle of its work, again and again."""
        if self.world.now < self._patience and self.cast.sweeper:
            self.world.kill(self.cast.sweeper)
            self.world.at(self.world.now + self.world.random.uniform(3.0, 9.0), self.kill_sweepers)

    def _tick_begins(self) -> None:
        self._dispatched = 0

    def _dispatch(self, paths: Sequence[str]) -> None:
        self._dispatched += len(paths)
        limit = DISPATCH_SIZE * self.cast.settings.concurrency
        if self._dispatched > limit:
            self.judge.broken("unexpected", f"{self._dispatched} paths were dispatched in one sweep, at most {limit}")


class Turns:
    """Three pull workers that sweep in turns; two of them are killed, one after the other."""

    def __init__(self, cast: Cast) -> None:
        workers = [SweepingWorker(cast, after=number * 0.5).process for number in range(3)]
        chance = cast.world.random
        at = 0.0
        for process in chance.sample(workers, 2):
            at += chance.uniform(4.0, 12.0)
            cast.world.at(at, partial(cast.world.kill, process))
