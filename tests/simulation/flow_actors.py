"""Those who cancel messages, whatever they are at, and those who enqueue with ids that count for a while."""

from __future__ import annotations

from s3queue.errors import QueueError, Unavailable

from .cast import Cast
from .faults import Profile
from .flow import DEDUP_SECONDS
from .judge import Judge
from .machines import Process
from .producers import Producers
from .world import World

FLOW = Profile(
    name="flow",
    kinds=(
        ("lost", 0.01),
        ("answer lost", 0.02),
        ("late", 0.02),
        ("contended", 0.01),
        ("retried", 0.01),
        ("crash before", 0.01),
        ("crash after", 0.02),
    ),
    pause=0.02,
    longest_pause=14.0,
    slow=0.2,
    slowest=1.0,
    lost_events=0.2,
    double_events=0.2,
    late_events=0.2,
    skew=20.0,
    long_handlers=0.3,
    stops=True,
    pulls=0.5,
)
CANCELLERS, SENDERS, IDS = 3, 4, 2


class FlowActors:
    """Operators who cancel, and producers who share a few dedup ids."""

    def __init__(self, world: World, judge: Judge, cast: Cast, producers: Producers) -> None:
        self.world = world
        self.judge = judge
        self.cast = cast
        self._producers = producers

    def begin(self) -> None:
        for _ in range(CANCELLERS):
            process = self.cast.process("operator")
            self._producers.keep(process, lambda process=process: self._cancel(process))  # type: ignore[misc]
        for number in range(SENDERS):
            process = self.cast.process("producer")
            self._producers.keep(
                process,
                lambda process=process, number=number: self._send(process, number),  # type: ignore[misc]
            )

    def _cancel(self, process: Process) -> None:
        queue, chance = self.cast.queue(process), self.world.random
        for _ in range(5):
            self.world.sleep(chance.random() * 4.0)
            paths = sorted(self.judge.ledger.present)
            leased = [path for path in paths if queue.keys.lease(path) in self.world.objects]
            paths = leased if leased and chance.random() < 0.5 else paths
            if not paths:
                continue
            path = chance.choice(paths)
            for _ in range(3):
                try:
                    queue.cancel(path)
                except Unavailable:
                    continue
                except QueueError:
                    pass
                break

    def _send(self, process: Process, number: int) -> None:
        queue, chance = self.cast.queue(process), self.world.random
        for turn in range(6):
            self.world.sleep(chance.random() * 5.0)
            body = self._producers.script(f"once-{number}-{turn}")
            for _ in range(3):
                try:
                    path = queue.enqueue(body, dedup_id=f"id-{chance.randrange(IDS)}", dedup_for=DEDUP_SECONDS)
                except QueueError:
                    continue
                self.judge.dedup.check_named(path)
                break
