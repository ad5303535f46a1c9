"""Rounds: several queues in one bucket, one sweeper function for all of them, and bounds on time.

The function is the real one: it is invoked every minute, twice at once if it takes longer, shares its time between the
queues, begins with another one each minute, and is killed at its time limit with all that it remembers. Some queues are
larger than a sweep can look at; in some schedules one of them kills whoever lists it. No event arrives, so that every
message starts because of a sweep, and has to start within what the settings promise, in every queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from greenlet import getcurrent

import handlers.sweeper as sweeper_function
from s3queue.settings import QueueSettings
from s3queue.sweeper.report import Report
from s3queue.sweeper.sweeper import Sweeper

from .cast import Cast
from .faults import Profile
from .functions import Fleet
from .judge import Judge
from .machines import Process, ProcessClock
from .producers import Producers
from .violations import Violation
from .watched import WatchedQueue
from .world import Fault, World

ROUNDS = Profile(name="rounds", lost_events=1.0, pulls=0.0)
NAMES = ("a", "b", "c", "d", "e", "f", "g")
#: Messages at work in a large queue: with pages of three keys, one sweep does not reach their end.
HELD = 15
PAGE = 3
#: The sweeper is invoked so often, and killed after so long; the requests of a sweep are few, and slow.
EVERY = 60.0
LIMIT = 90.0
SWEEP_REQUESTS = 30
SLOWEST = 1.4
RESCUE_AFTER = timedelta(seconds=10)
#: How long the schedule lasts, and until when messages come.
LASTS = 660.0
LAST_PUT = 60.0


@contextmanager
def small_sweeps() -> Iterator[None]:
    """The budget of a sweep, as small as this world."""
    name = "SWEEP_REQUESTS"
    kept = getattr(sweeper_function, name)
    setattr(sweeper_function, name, SWEEP_REQUESTS)
    try:
        yield
    finally:
        setattr(sweeper_function, name, kept)


class _Slow:
    """The sweeper's requests are slow; whoever lists the leases of a poisonous queue dies."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def draw(self, process: Process, operation: str, key: str) -> Fault:
        random = self._rounds.world.random
        if not process.name.startswith("sweeper"):
            return Fault(there=random.random() * 0.02)
        is_poison = operation == "list" and key == f"{self._rounds.poison}/leases/"
        return Fault(kind="crash before" if is_poison else "", there=random.random() * SLOWEST)


@dataclass(slots=True)
class _Silent:
    """Telemetry that tells nobody."""

    def swept(self, report: Report) -> None: ...
    def flush(self) -> None: ...


class _Invocation:
    """Lambda's context."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ends_at = world.now + LIMIT

    def get_remaining_time_in_millis(self) -> int:
        return round((self._ends_at - self._world.now) * 1000)


class Rounds:
    """The queues, who works for them, and the function that sweeps them all."""

    def __init__(self, world: World) -> None:
        self.world = world
        chance = world.random
        world.faults = _Slow(self)
        world.store.page = PAGE
        self.settings = QueueSettings(
            visibility_timeout=timedelta(seconds=30),
            max_attempts=2,
            retry_base=timedelta(seconds=1),
            retry_cap=timedelta(seconds=1),
            rescue_after=RESCUE_AFTER,
        )
        names = chance.sample(NAMES, len(NAMES))
        self.large = set(names[: chance.choice((2, 5, 6))])
        self.poison = names[0] if chance.random() < 0.5 else ""
        self.judges = {name: Judge(world, self.settings.max_attempts, name) for name in NAMES}
        self.casts = {name: Cast(world, judge, self.settings, ROUNDS, name=name) for name, judge in self.judges.items()}
        self.fleets = {name: Fleet(cast, 2, drains=False) for name, cast in self.casts.items()}
        self._runtimes: dict[Process, Any] = {}
        #: Execution environments of the sweeper that are frozen until the next minute.
        self._idle: list[Process] = []
        self._held: set[tuple[str, str]] = set()

    # The watcher: each judge sees its queue

    def performed(self, process: Process, operation: str, key: str, sent_at: float, before: Any, after: Any) -> None:
        self.judges[key.partition("/")[0]].performed(process, operation, key, sent_at, before, after)

    def stepped(self) -> None:
        for judge in self.judges.values():
            judge.stepped()

    def hold(self, process: Process, claim: Any) -> None: ...

    def let_go(self, process: Process) -> None:
        for judge in self.judges.values():
            judge.let_go(process)

    def broken(self, promise: str, what: str) -> None:
        self.judges[NAMES[0]].broken(promise, what)

    def violations(self) -> list[Violation]:
        return [violation for judge in self.judges.values() for violation in judge.violations]

    # The plot

    def run(self) -> None:
        with small_sweeps(), self._invoked():
            for name, cast in self.casts.items():
                if name in self.large:
                    self._hold_many(cast)
                producers = Producers(cast, LAST_PUT / 0.4)
                for _ in range(self.world.random.choice((1, 2))):
                    producers.produce()
            self.world.at(self.world.random.random() * 5.0, self._minute)
            self.world.run(LASTS, done=lambda: bool(self.violations()))
            if not self.violations():
                self._check_started()

    def _hold_many(self, cast: Cast) -> None:
        process = cast.process("holder")
        queue = cast.queue(process)

        def hold() -> None:
            for number in range(HELD):
                path = f"messages/a{number:02d}"
                self._held.add((cast.name, path))
                queue.store.put(queue.keys.message(path), b'{"id": "held", "takes": 0.1, "plan": "k"}')
                queue.claim(path, read_first=True, timeout=3600)

        self.world.spawn(process, hold)

    @contextmanager
    def _invoked(self) -> Iterator[None]:
        """The function's memory belongs to its process."""
        kept = sweeper_function.runtime
        runtimes = self._runtimes
        sweeper_function.runtime = lambda: runtimes[getcurrent().process]  # type: ignore[assignment]
        try:
            yield
        finally:
            sweeper_function.runtime = kept

    def _minute(self) -> None:
        """The schedule invokes the function: an execution environment that is idle, or a new one."""
        self.world.at(self.world.now + EVERY, self._minute)
        if self._idle:
            process = self._idle.pop()
            process.thaw(self.world.now)
        else:
            process = self.casts[NAMES[0]].process("sweeper")
            rounds = {name: self._round(cast, process) for name, cast in self.casts.items()}
            clock = ProcessClock(self.world, process)
            self._runtimes[process] = sweeper_function.Runtime(rounds, {}, None, clock)
        self.world.spawn(process, self._invoke, process)

    def _invoke(self, process: Process) -> None:
        is_over = self._end_at_its_limit(process)
        sweeper_function.handle({}, _Invocation(self.world))
        is_over.append(True)
        process.freeze(self.world.now)
        self._idle.append(process)

    def _end_at_its_limit(self, process: Process) -> list[bool]:
        """Kill the process when the invocation has taken too long; append to the list when it is over."""
        is_over: list[bool] = []

        def end() -> None:
            if not is_over:
                self.world.note(process, "", "", "killed at its time limit")
                self.world.kill(process)

        self.world.at(self.world.now + LIMIT, end)
        return is_over

    def _round(self, cast: Cast, process: Process) -> Any:
        fleet = self.fleets[cast.name]

        def dispatch(paths: Sequence[str]) -> None:
            if process.is_alive:
                fleet.dispatch(paths)

        queue: WatchedQueue = cast.queue(process)
        return sweeper_function.Round(cast.name, Sweeper(queue=queue, dispatch=dispatch), _Silent())  # type: ignore[arg-type]

    def _check_started(self) -> None:
        """Whatever may run has started within what the settings promise, in every queue.

        A message is found by a sweep after `rescue_after`, the second one if it lies on the second page; every queue is
        swept every minute, first or last; where sweeps do not come to the end of a queue, the next ones go on. One may
        be cut short, because these requests are slow and its queue had only its share of the time. If one
        queue kills the sweeper, the others have their turn in the minutes in which they come before it.
        """
        minutes = len(NAMES) if self.poison else 3
        for name, judge in self.judges.items():
            if self.poison and name in self.large:
                continue
            sweeps = 6 if name in self.large else 0
            bound = RESCUE_AFTER.total_seconds() + EVERY * (minutes + sweeps) + LIMIT
            for life in judge.ledger.all():
                if (name, life.path) in self._held or life.end == "overwritten":
                    continue
                runs = [run.began_at for runs in life.runs.values() for run in runs]
                late = min(runs, default=LASTS) - life.began_at
                if late > bound:
                    what = f"{name}/{life.path} started after {late:.0f} s, at most {bound:.0f} are promised"
                    judge.broken("P6", what)
