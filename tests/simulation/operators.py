"""Operators: whoever replays, configures, purges and deletes by hand, in the middle of it."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from s3queue.errors import Conflict, QueueError, QueueFull, Unavailable
from s3queue.paths import format_due, is_batch, partition_of, without_mark

from .cast import Cast
from .edits import repaired
from .faults import DrawnFaults, Profile
from .judge import Judge
from .machines import EPOCH
from .producers import Producers
from .watched import WatchedQueue
from .world import World

OPERATED = Profile(
    name="operators", double_events=0.2, lost_events=0.2, pulls=0.5, retries_long=True, long_handlers=0.3
)
PAGE = 3
SWEEP_REQUESTS = 12
#: Messages that are due in an hour: with them, the queue is full.
PARKED = 20
MAX_DEPTH = 16
#: By then the sweeper has counted all of it, however little it can look at in one sweep.
COUNTED_AT = 60.0
ENDS_AT = 90.0
#: In these of forty schedules, operators edit what has died.
EDITED = 11
#: In these, of three times as many, they edit what has died in groups.
EDITED_GROUPS, EDITED_GROUPS_OF = 98, 120
#: How long a queue stays paused.
PAUSE = 25.0


def replaying(cast: Cast, at: float) -> None:
    """An operator who replays whatever is dead at that time, and repeats what has no answer."""
    process = cast.process("operator")

    def run() -> None:
        queue = cast.queue(process)
        letters = queue.letters()
        try:
            page = queue.store.list(queue.keys.prefix("dead"))
        except QueueError:
            return
        for path in [path for entry in page.objects if (path := queue.keys.path_under("dead", entry.key))]:
            for _ in range(3):
                try:
                    letters.replay(path)
                except Unavailable:
                    cast.world.sleep(cast.world.random.choice((0.1, 2.0, 6.0)))
                    continue
                except QueueError:
                    pass
                break

    cast.world.spawn(process, run, after=at)


def editing(cast: Cast, at: float, *, groups: bool = False) -> None:
    """An operator who repairs whatever is dead at that time; without an answer, he edits it again, or replays it."""
    process = cast.process("operator")

    def run() -> None:
        queue = cast.queue(process)
        try:
            page = queue.store.list(queue.keys.prefix("dead"))
        except QueueError:
            return
        for path in [path for entry in page.objects if (path := queue.keys.path_under("dead", entry.key))]:
            if is_batch(without_mark(path)) or (partition_of(path) and not groups):
                continue
            for pause in (0.1, 2.0, 6.0):
                try:
                    stored = queue.store.open(queue.keys.dead(path))
                    if stored is None:
                        break
                    queue.replay_edited(path, repaired(stored.read(), by=process.name if groups else ""))
                except Unavailable:
                    cast.world.sleep(pause)
                    if cast.world.random.random() < 0.3:
                        replay(path)
                    continue
                except QueueError:
                    pass
                break

    def replay(path: str) -> None:
        try:
            cast.queue(process).letters().replay(path)
        except QueueError:
            return

    cast.world.spawn(process, run, after=at)


def configuring(cast: Cast, every: float) -> None:
    """An operator who lowers the visibility timeout, and raises it again, while everything is at work."""
    process = cast.process("operator")
    # In a second, a slow worker cannot claim a message and name it in a heartbeat: then a lease may run out.
    timeouts = (2, 4, 12, 30) if cast.profile.undisturbed else (1, 2, 4, 12, 30)

    def run() -> None:
        queue = cast.queue(process)
        while not cast.is_over:
            cast.world.sleep(every * cast.world.random.random())
            with suppress(QueueError):
                queue.configure(visibility_timeout=cast.world.random.choice(timeouts))

    cast.world.spawn(process, run)


def renaming(cast: Cast, every: float) -> None:
    """A second operator, who changes another setting at the same time: neither change may be lost."""
    process = cast.process("operator")

    def run() -> None:
        queue = cast.queue(process)
        while not cast.is_over:
            cast.world.sleep(every * cast.world.random.random())
            with suppress(QueueError):
                queue.configure(concurrency=cast.world.random.choice((2, 3, 4)))

    cast.world.spawn(process, run)


class Operators:
    """Everything that an operator can do, at once, in a queue that is full."""

    def __init__(self, world: World, judge: Judge, cast: Cast, producers: Producers) -> None:
        self.world = world
        self.judge = judge
        self.cast = cast
        self._producers = producers
        self._parked: set[str] = set()

    def begin(self) -> None:
        self.world.store.page = PAGE
        self.cast.sweep_requests = SWEEP_REQUESTS
        due = format_due(EPOCH + timedelta(hours=1))
        for number in range(PARKED):
            path = f"delayed/{due}/parked-{number:02d}"
            self._parked.add(path)
            self.world.store.put(f"{self.judge.root}{path}", b'{"id": "parked", "takes": 0.1, "plan": "k"}')
        # A batch whose lines die of two errors.
        lines = [f'{{"id": "{plan}", "takes": 0.1, "plan": "{plan}"}}\n' for plan in "rfkr"]
        self.world.store.put(f"{self.judge.root}messages/mixed.ndjson", "".join(lines).encode())
        for work in (self._pause, self._delete_by_hand, self._replay_some, self._purge_dead, self._fill):
            process = self.cast.process("operator")
            queue = self.cast.queue(process)
            self._producers.keep(process, lambda work=work, queue=queue: work(queue))  # type: ignore[misc]

    def _somewhen(self, earliest: float, latest: float) -> None:
        self.world.sleep(max(0.0, self.world.random.uniform(earliest, latest) - self.world.now))

    def _pause(self, queue: WatchedQueue) -> None:
        self._somewhen(2.0, 8.0)
        with suppress(QueueError):
            queue.pause()
        self.world.sleep(PAUSE)
        with suppress(QueueError):
            queue.resume()

    def _delete_by_hand(self, queue: WatchedQueue) -> None:
        """As `aws s3 rm` does it, whatever the message is at; or as a purge does, which leaves what is at work."""
        for _ in range(6):
            self._somewhen(self.world.now, self.world.now + 8.0)
            paths = sorted(path for path in self.judge.ledger.present if path not in self._parked)
            # What has a lease, at work or waiting, leaves the most behind.
            leased = [path for path in paths if queue.keys.lease(path) in self.world.objects]
            paths = leased if leased and self.world.random.random() < 0.7 else paths
            if paths and self.world.random.random() < 0.5:
                queue.remove(self.world.random.choice(paths))
            elif paths:
                queue.purge_one(self.world.random.choice(paths))

    def _replay_some(self, queue: WatchedQueue) -> None:
        """The dead of one kind of error; of a batch, those lines only."""
        letters = queue.letters()
        for _ in range(6):
            self._somewhen(self.world.now + 4.0, self.world.now + 16.0)
            for path in self._dead(queue):
                with suppress(QueueError):
                    letters.replay(path, error_type=self.world.random.choice(("HandlerFailed", "Reject")))

    def _purge_dead(self, queue: WatchedQueue) -> None:
        for _ in range(4):
            self._somewhen(self.world.now + 3.0, self.world.now + 20.0)
            with suppress(QueueError):
                queue.letters().purge(error_type=self.world.random.choice(("HandlerFailed", "Reject")))

    def _dead(self, queue: WatchedQueue) -> list[str]:
        keys = [key for key in self.world.objects if key.startswith(queue.keys.prefix("dead"))]
        return sorted(path for key in keys if (path := queue.keys.path_under("dead", key)))

    def _fill(self, queue: WatchedQueue) -> None:
        """A producer whom `max_depth` has to hold up, and at last an operator who purges the queue."""
        number = 0
        while self.world.now < ENDS_AT:
            self.world.sleep(4.0)
            number += 1
            try:
                queue.enqueue(self._producers.script(f"more-{number}"), name=f"more-{number}")
            except (QueueFull, Conflict):
                continue
            if self.world.now > COUNTED_AT:
                there = len(self.judge.ledger.present)
                self.judge.broken("unexpected", f"{there} messages are there, max_depth is {MAX_DEPTH}, and one came")
        if isinstance(faults := self.world.faults, DrawnFaults):
            faults.losing["stats.json"] = self.world.random.choice((0, 1, 2))
        queue.purge()
        self._fill_again(queue)

    def _fill_again(self, queue: WatchedQueue) -> None:
        """It is not full any more, and whoever sweeps says so, even if it was not heard the first time."""
        until = self.world.now + COUNTED_AT
        while self.world.now < until:
            self.world.sleep(4.0)
            try:
                queue.enqueue(self._producers.script("again"), name="again")
            except QueueFull:
                continue
            except Conflict:
                pass
            return
        self.judge.broken("unexpected", f"the queue was purged {COUNTED_AT:.0f} s ago, and is still said to be full")
