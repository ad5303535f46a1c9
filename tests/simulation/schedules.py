"""Schedules: from a seed to a small world, a while of trouble, quiet, and a verdict."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from s3queue.documents import dead_letter
from s3queue.errors import QueueError
from s3queue.keys import format_due
from s3queue.protocol import outcomes
from s3queue.settings import QueueSettings

from .actors import Cast, Fleet, PullWorker, configuring, replaying, sweeping
from .checks import check_quiet, leftovers, tally
from .crowd import CROWDED, PROMPT, REDELIVERED_WITHIN, Crowd, QuickFaults, limits, profile_of
from .faults import DrawnFaults, draw_profile
from .judge import Judge, Violation
from .world import EPOCH, QUEUE, World

#: Virtual seconds that the sweeper and the workers have for repairing everything.
REPAIR_SECONDS = 240.0

#: Longer lines are not held in memory; no script is as short as that.
SHORT_LINE = 16

#: What a handler does, attempt by attempt; the last letter holds for all that follow. k: ok, f: fails, r: rejects.
PLANS = ("k", "k", "k", "k", "fk", "fk", "ffk", "f", "f", "r", "kf", "kr", "fr")


@dataclass(slots=True)
class Verdict:
    """What came of one schedule."""

    seed: int
    profile: str
    violations: list[Violation]
    counts: Counter[str]
    trace: list[tuple[float, str, str, str, str]] = field(repr=False)

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()


class Schedule:
    """One seed's world and who acts in it."""

    def __init__(self, seed: int) -> None:
        self.judge = Judge(max_attempts=1)
        # The faults draw from the world's own stream, so that there is exactly one.
        self.world = World(seed, faults=None, watcher=self)  # type: ignore[arg-type]
        self.judge.world = self.world
        chance = self.world.random
        self.profile = profile_of(seed) or draw_profile(chance)
        kind = QuickFaults if self.profile in (PROMPT, CROWDED) else DrawnFaults
        self.faults = kind(self.profile, chance)
        self.world.faults = self.faults
        self.settings = self._settings()
        self.judge.max_attempts = self.settings.max_attempts
        self.cast = Cast(self.world, self.judge, self.settings, self.profile)
        self.fleet = Fleet(self.cast, 2, drains=chance.random() < 0.5)
        self.lasts = 8.0 + chance.random() * 17.0
        if self.profile is PROMPT:
            self.judge.redelivered_within = self.settings.visibility_timeout.total_seconds() + REDELIVERED_WITHIN
            self.judge.workers = self.cast.workers
        self._at_work = 0
        self._is_quiet = False

    def _settings(self) -> QueueSettings:
        chance = self.world.random
        return QueueSettings(
            visibility_timeout=timedelta(seconds=12 if self.profile.pulls_only else chance.choice((4, 6))),
            max_attempts=chance.choice((1, 2, 2, 3, 3)),
            retry_base=timedelta(seconds=1),
            retry_cap=timedelta(seconds=2),
            rescue_after=timedelta(seconds=300 if self.profile.undisturbed else 60 if self.profile is PROMPT else 4),
        )

    # The judge sees everything; S3 tells the function of new messages.

    def performed(self, process: Any, operation: str, key: str, sent_at: float, before: Any, after: Any) -> None:
        self.judge.performed(process, operation, key, sent_at, before, after)
        if after and key.startswith(f"{QUEUE}/messages/"):
            self.fleet.event(key.removeprefix(f"{QUEUE}/"), after.etag)

    def stepped(self) -> None:
        self.judge.stepped()

    def hold(self, process: Any, claim: Any) -> None:
        self.judge.hold(process, claim)

    def let_go(self, process: Any) -> None:
        self.judge.let_go(process)

    def broken(self, promise: str, what: str) -> None:
        self.judge.broken(promise, what)

    # The plot

    def run(self) -> Verdict:
        with silenced(), short_lines(), limits(self.profile):
            try:
                self._begin()
                self.world.run(self.lasts)
                self.faults.is_over = self.cast.is_over = True
                self._watch_for_quiet()
                self.world.run(self.lasts + REPAIR_SECONDS, done=lambda: self._is_quiet)
                check_quiet(self.world, self.judge, self.cast)
            finally:
                self.world.close()
        return Verdict(self.world.seed, self.profile.name, self.judge.violations, tally(self.judge), self.world.trace)

    def _begin(self) -> None:
        chance = self.world.random
        crowd = Crowd(self.world, self.judge, self.cast) if self.profile is CROWDED else None
        for _ in range(chance.choice((12, 24)) if crowd else chance.choice((1, 2, 3, 4))):
            self._produce()
        if crowd:
            crowd.begin()
        elif self.profile is PROMPT:
            self._keep_awake()
        if chance.random() < self.profile.pulls:
            PullWorker(self.cast, float("inf") if self.profile.pulls_only else self.lasts)
        for _ in range(chance.choice((1, 1, 2))):
            every = 2.0 if self.profile is PROMPT else chance.uniform(1.5, 4.0)
            sweeping(self.cast, self.fleet.dispatch, every)
            if crowd:
                break  # what one tick dispatches is counted
        if self.profile.configures:
            configuring(self.cast, self.profile.configures)
        if self.profile.operator:
            replaying(self.cast, self.lasts * chance.uniform(0.4, 1.0))
            replaying(self.cast, self.lasts * chance.uniform(0.4, 1.0))

    def _keep_awake(self) -> None:
        """Something that is due in less than a minute: the sweeper stays."""
        path = f"delayed/{format_due(EPOCH + timedelta(seconds=58))}/keeps-awake"
        self.world.store.put(f"{QUEUE}/{path}", b'{"id": "awake", "takes": 0.1, "plan": "k"}')

    def _watch_for_quiet(self) -> None:
        if not (leftovers(self.world) or self.fleet.busy or self.world.in_flight or self._at_work):
            self._is_quiet = True
        elif not self.judge.violations:
            self.world.at(self.world.now + 1.0, self._watch_for_quiet)
        else:
            self._is_quiet = True

    # Producers

    def _produce(self) -> None:
        """One name, PUT once or several times."""
        chance, profile = self.world.random, self.profile
        number = self.cast.count("messages")
        form = chance.choice(("single", "single", "single", "batch", "delayed", "urgent"))
        # Some names look like the mark of a second dead letter.
        name = f"m{number}.ndjson" if form == "batch" else f"m{number}{chance.choice(('', '', '', '~0123456789ab'))}"
        options: dict[str, Any] = {"priority": 200} if form == "urgent" else {}
        if form == "delayed":
            options["delay"] = chance.uniform(1.0, 8.0)
        puts = [(chance.random() * self.lasts * 0.4, self._body(f"{number}a", form))]
        while profile.re_puts and len(puts) < 4 and chance.random() < 0.5:
            body = puts[-1][1]
            if not (profile.equal_re_puts and chance.random() < 0.6):
                body = self._body(f"{number}{'abcd'[len(puts)]}", form)
            puts.append((puts[-1][0] + chance.choice((0.3, 2.0, 8.0, 16.0)) * chance.random(), body))
        process = self.cast.process("producer")
        queue = self.cast.queue(process)
        self._at_work += 1

        def produce(rest: list[tuple[float, bytes]], options: dict[str, Any]) -> None:
            for at, body in rest:
                self.world.sleep(max(0.0, at - self.world.now))
                if profile.multipart and chance.random() < 0.4:
                    self._upload(f"{QUEUE}/messages/{name}", body)
                    continue
                for _ in range(3):
                    since = self.world.now
                    try:
                        path = queue.enqueue(body, name=name, **options)
                        self.judge.enqueued(process, path, since)
                    except QueueError:
                        continue
                    if "delay" in options:
                        # A re-PUT has the same name only if it has the same due time.
                        options = {"due_at": queue.keys and _due_at(path)}
                    break

        self._keep(process, lambda: produce(puts, options))

    def _upload(self, key: str, body: bytes) -> None:
        """A multipart upload that ends now: S3 dates it by its start, and others may have PUT the name meanwhile."""
        with suppress(QueueError):
            self.world.store.upload(key, body, seconds=self.world.random.random() * 12.0)

    def _keep(self, process: Any, function: Callable[[], None]) -> None:
        def end() -> None:
            self._at_work -= 1

        def run() -> None:
            function()
            end()

        process.on_death = end
        self.world.spawn(process, run)

    def _body(self, name: str, form: str) -> bytes:
        if form != "batch":
            return self._script(name)
        count = self.world.random.choice((2, 3, 4))
        return b"".join(self._script(f"{name}{line}") + b"\n" for line in range(1, count + 1))

    def _script(self, name: str) -> bytes:
        chance = self.world.random
        takes = chance.random() * 0.6
        if self.profile.long_handlers and chance.random() < self.profile.long_handlers:
            takes = chance.random() * 10.0
        script = {"id": name, "takes": round(takes, 2), "plan": chance.choice(PLANS)}
        if chance.random() < (0.5 if takes > 0.6 else 0.1):
            script["extends"] = True
        return json.dumps(script).encode()


def _due_at(path: str) -> Any:
    from s3queue.keys import due_of

    return due_of(path)


@contextmanager
def silenced() -> Iterator[None]:
    """Sweepers log what they could not do, and here they often cannot."""
    log = logging.getLogger("s3queue")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def short_lines() -> Iterator[None]:
    """Every line of a batch counts as one that is too long to be held in memory when it is buried, and no letter's
    metadata has room for the errors of its lines.
    """
    kept = outcomes.HELD_BYTES, dead_letter.TYPES_CHARACTERS
    outcomes.HELD_BYTES, dead_letter.TYPES_CHARACTERS = SHORT_LINE, 0
    try:
        yield
    finally:
        outcomes.HELD_BYTES, dead_letter.TYPES_CHARACTERS = kept


def run(seed: int) -> Verdict:
    return Schedule(seed).run()
