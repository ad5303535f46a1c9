"""Those who cancel messages, whatever they are at, and those who enqueue with ids that count for a while."""

from __future__ import annotations

from s3queue.errors import QueueError, Unavailable, Unreadable
from s3queue.protocol.outcomes import UNREADABLE

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
#: In one of so many schedules, messages are archived for a while, and replayed where they lie.
ARCHIVED, ARCHIVED_OF = 101, 160


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

        if self.world.seed % ARCHIVED_OF == ARCHIVED:
            process = self.cast.process("archivist")
            self._producers.keep(process, self._archive)

    def _archive(self) -> None:
        """For seconds at a time, nobody can read some message; once nobody archives any more, all of them are replayed.

        A burial that had begun may park its message later.
        """
        chance, refused = self.world.random, self.world.store.refused
        for _ in range(8):
            self.world.sleep(chance.random() * 2.0)
            paths = sorted(self.judge.ledger.present)
            # What counts once is what a replay may be mistaken for.
            paths = sorted(self.judge.dedup.named.intersection(paths)) or paths
            if paths:
                refused[f"{self.judge.root}{chance.choice(paths)}"] = Unreadable
            self.world.sleep(chance.random() * 6.0)
            refused.clear()
            process = self.cast.process("operator")
            self.world.spawn(process, self._replay_unread, process, chance.choice((1, 2)))
        process = self.cast.process("operator")
        self.world.spawn(process, self._replay_unread, process, 60)

    def _replay_unread(self, process: Process, rounds: int) -> None:
        letters, root = self.cast.queue(process).letters(), f"{self.judge.root}dead/"
        for _ in range(rounds):
            found = [
                key for key, one in self.world.objects.items() if key.startswith(root) and UNREADABLE in one.metadata
            ]
            for key in sorted(found):
                try:
                    letters.replay(key.removeprefix(root))
                except QueueError:
                    continue
            self.world.sleep(self.world.random.random() * 4.0)

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
