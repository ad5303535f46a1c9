"""Those who make schedules (cron lines) in the random schedules, change, pause and remove them.  [P10]"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from unittest.mock import patch

from s3queue.errors import QueueError, Unavailable
from s3queue.flow import schedule_firing

from .cast import Cast
from .judge import Judge
from .machines import EPOCH, Process
from .producers import Producers
from .world import World

#: Seeds of this remainder have schedules. The first instant is a minute after the world's first.
CRON = 14
MINUTE = 60.0
#: A message is put so long before its instant, and one that is late by less was not missed.
LEAD, GRACE = timedelta(seconds=8), timedelta(seconds=3)
MISSED = ("all", "all", "last", "skip")


@contextmanager
def short_leads(*, is_wanted: bool) -> Iterator[None]:
    """Messages are put seconds before they are due, so that sweepers meet their faults then."""
    with ExitStack() as patches:
        if is_wanted:
            patches.enter_context(patch.object(schedule_firing, "LEAD", LEAD))
            patches.enter_context(patch.object(schedule_firing, "GRACE", GRACE))
        yield


class CronActors:
    """Producers who make schedules, the same one twice, and an operator who changes one of his own."""

    def __init__(self, world: World, judge: Judge, cast: Cast, producers: Producers) -> None:
        self.world = world
        self.judge = judge
        self.cast = cast
        self._producers = producers
        first, chance = EPOCH + timedelta(minutes=1), world.random
        self.instants = chance.choice((1, 1, 1, 2))
        last = first.minute + self.instants - 1
        self._cron = f"{first.minute}-{last} {first.hour} {first.day} {first.month} *"

    def begin(self) -> None:
        chance = self.world.random
        for number in range(chance.choice((1, 2))):
            missed, priority = chance.choice(MISSED), chance.choice((0, 0, 200))
            body = self._producers.script(f"s{number}").decode()
            for _ in range(chance.choice((1, 1, 2))):
                self._keep("producer", f"s{number}", body, missed, priority)
        if chance.random() < 0.6:
            self._keep("operator", "t", self._producers.script("t").decode(), "all", 0)

    def _keep(self, role: str, name: str, body: str, missed: str, priority: int) -> None:
        process = self.cast.process(role)
        work = self._change if role == "operator" else self._make
        self._producers.keep(process, lambda: work(process, name, body, missed, priority))

    def _every(self, process: Process, name: str, body: str, missed: str, priority: int) -> bool:
        """Whether it was acknowledged; what has no answer is asked for again."""
        for _ in range(3):
            try:
                self.cast.queue(process).every(self._cron, name=name, body=body, missed=missed, priority=priority)  # type: ignore[arg-type]
            except Unavailable:
                continue
            except QueueError:
                return False
            return True
        return False

    def _make(self, process: Process, name: str, body: str, missed: str, priority: int) -> None:
        self.world.sleep(self.world.random.random() * 6.0)
        if self._every(process, name, body, missed, priority) and missed != "skip":
            self.judge.schedules_made.setdefault(name, self.world.now)

    def _change(self, process: Process, name: str, body: str, missed: str, priority: int) -> None:
        """Whatever he does, and whatever of it is known: an instant has one message."""
        chance, schedules = self.world.random, self.cast.queue(process).schedules
        self._every(process, name, body, missed, priority)
        for _ in range(chance.choice((2, 4))):
            self.world.sleep(chance.random() * 5.0)
            what = chance.choice(("pause", "resume", "remove", "every", "every"))
            with suppress(QueueError):
                if what == "every":
                    self._every(process, name, body, missed, chance.choice((0, 100, 200)))
                else:
                    getattr(schedules, what)(name)
