"""Schedules: from a seed to a small world, a while of trouble, quiet, and a verdict."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from s3queue.documents import dead_facts
from s3queue.paths import format_due
from s3queue.protocol import outcomes
from s3queue.settings import QueueSettings

from .actors import PullWorker, sweeping
from .cast import Cast
from .chains import CHAINED
from .checks import check_quiet, leftovers, tally
from .cron_actors import CRON, MINUTE, CronActors, short_leads
from .crowd import (
    CROWDED,
    LONG_PATIENCE,
    PROMPT,
    REDELIVERED_WITHIN,
    TAKEN_OVER_WITHIN,
    TURNS,
    Crowd,
    QuickFaults,
    Turns,
    has_hundreds,
    limits,
)
from .faults import DrawnFaults, Profile, draw_profile
from .flow_actors import FLOW, FlowActors
from .functions import Fleet
from .judge import Judge
from .machines import EPOCH
from .operators import (
    EDITED,
    EDITED_GROUPS,
    EDITED_GROUPS_OF,
    MAX_DEPTH,
    OPERATED,
    Operators,
    configuring,
    editing,
    renaming,
    replaying,
)
from .partition_actors import PARTITIONED, SHARED, SHARED_OF, PartitionActors, draw_partitioned
from .partition_worlds import SINGLE_FORMS, draw_settings, has_batches
from .partitions import small_windows
from .producers import Producers
from .reruns import rerunning
from .sends import small_records
from .strangers import STRANGERS, Strangers
from .threads import greenlets
from .violations import Violation
from .world import QUEUE, World

#: One schedule in so many has several queues.
ROUNDS_EVERY = 40
#: In these of forty, handlers send messages.
SENDING = (11, 31)
#: In one of so many that are about heartbeats, two workers have one id.
TWINS_OF, TWINS = 4, 2
#: Longer lines are not held in memory; no script is as short as that.
SHORT_LINE = 16
#: Characters of `{"HandlerFailed": 12}`.
ONE_ERROR = 21
#: Virtual seconds that the sweeper and the workers have for repairing everything.
REPAIR_SECONDS = 240.0
#: A message that outlasts its lease holds its whole partition up, again and again.
PARTITION_SECONDS = 900.0
#: A breaker lets one message run in half a minute while each of them fails at first, and there may be fifty.
BROKEN_SECONDS = 3600.0


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
        # The faults draw from the world's own stream, so that there is exactly one.
        self.world = World(seed, faults=None, watcher=self)  # type: ignore[arg-type]
        self.judge = Judge(self.world, max_attempts=1)
        chance = self.world.random
        self.is_cron = seed % 40 == CRON
        if self.is_cron:
            self.world.now = MINUTE * chance.uniform(0.7, 0.95)
        self.is_partitioned = seed % 40 in (*PARTITIONED, CHAINED)
        self.is_shared = seed % SHARED_OF == SHARED
        draw = draw_partitioned if self.is_partitioned or self.is_cron else draw_profile
        self.profile = _profile_of(seed) or draw(chance)
        if seed % 40 in SENDING:
            self.profile = replace(self.profile, name=f"{self.profile.name}, sending", sends=0.6)
        if seed % 40 == CHAINED:
            self.profile = replace(self.profile, name=f"chains of {self.profile.name}", sends=0.7)
        if self.is_cron:
            self.profile = replace(self.profile, name=self.profile.name.replace("partitions", "cron"))
        kind = QuickFaults if self.profile in (PROMPT, TURNS, CROWDED, STRANGERS, OPERATED) else DrawnFaults
        self.faults = kind(self.profile, chance)
        self.world.faults = self.faults
        self.settings = self._settings()
        self.judge.max_attempts = self.settings.max_attempts
        self.cast = Cast(self.world, self.judge, self.settings, self.profile)
        self.cast.has_runners = chance.random() < 0.4 or self.profile is OPERATED
        self.fleet = Fleet(self.cast, 2, drains=chance.random() < 0.5)
        self.lasts = 8.0 + chance.random() * 17.0
        self.producers = Producers(self.cast, self.lasts)
        self.producers.is_chained = seed % 40 == CHAINED
        self.cron = CronActors(self.world, self.judge, self.cast, self.producers) if self.is_cron else None
        if self.cron:
            self.lasts += self.world.now + MINUTE * (self.cron.instants - 1)
        self.judge.history.keeps_records, self.judge.rates.rate = self.settings.history, self.settings.limit
        if self.is_partitioned and not has_batches(self.settings):
            self.producers.forms = SINGLE_FORMS
        if self.profile in (PROMPT, TURNS):
            late = REDELIVERED_WITHIN if self.profile is PROMPT else TAKEN_OVER_WITHIN
            self.judge.redelivered_within = self.settings.visibility_timeout.total_seconds() + late
            self.judge.workers = self.cast.workers
            self.judge.do_workers_sweep = self.profile is TURNS
        self._is_quiet = False

    def _settings(self) -> QueueSettings:
        chance, profile = self.world.random, self.profile
        is_judged = profile in (PROMPT, TURNS)
        timeout = 12 if profile.pulls_only and not is_judged else chance.choice((4, 6))
        settings = QueueSettings(
            visibility_timeout=timedelta(seconds=timeout),
            max_attempts=chance.choice((1, 2, 2, 3, 3)),
            retry_base=timedelta(seconds=8 if profile.retries_long else 1),
            retry_cap=timedelta(seconds=9 if profile.retries_long else 2),
            max_depth=MAX_DEPTH if profile is OPERATED else None,
            rescue_after=timedelta(seconds=300 if profile.undisturbed else 60 if is_judged else 4),
            # By the seed, so that nothing else is drawn differently.
            keep_payload=self.world.seed % 20 == 6 or (self.is_partitioned and chance.random() < 0.2),
            partitions=chance.choice((0, 1, 2)) if self.is_partitioned else 0,
        )
        settings = draw_settings(settings, chance) if self.is_partitioned else settings
        if self.is_shared:
            settings = replace(settings, partitions=1, max_attempts=max(settings.max_attempts, 2))
        return settings

    # The judge sees everything; S3 tells the function of new messages.

    def performed(self, process: Any, operation: str, key: str, sent_at: float, before: Any, after: Any) -> None:
        self.judge.performed(process, operation, key, sent_at, before, after)
        # What threads are to share must not all be a function's.
        is_told = not (self.is_shared and key.startswith(f"{QUEUE}/messages/@="))
        if after and is_told and key.startswith(f"{QUEUE}/messages/"):
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
        small = (short_lines(), small_records(), small_windows(self.world), short_leads(is_wanted=self.is_cron))
        with silenced(), greenlets(), limits(self.profile), ExitStack() as patches:
            for one in small:
                patches.enter_context(one)
            try:
                self._begin()
                self.world.run(self.lasts)
                self.faults.is_over = self.cast.is_over = True
                self._watch_for_quiet()
                self.world.run(self.lasts + self._patience(), done=lambda: self._is_quiet)
                check_quiet(self.world, self.judge, self.cast)
            finally:
                self.world.close()
        return Verdict(self.world.seed, self.profile.name, self.judge.violations, tally(self.judge), self.world.trace)

    def _patience(self) -> float:
        """How long all repairs may take, after which nothing may be left."""
        if self.settings.breaker:
            return BROKEN_SECONDS
        if self.profile is CROWDED and has_hundreds(self.world):
            return LONG_PATIENCE + REPAIR_SECONDS
        return PARTITION_SECONDS if self.is_partitioned else REPAIR_SECONDS

    def _begin(self) -> None:
        chance = self.world.random
        crowd = Crowd(self.world, self.judge, self.cast) if self.profile is CROWDED else None
        # Without a history, what has a lease of its own leaves no trace that could be judged.
        count = crowd.names() if crowd else chance.choice((1, 2, 3, 4)) * self.settings.history
        for _ in range(count):
            self.producers.produce()
        if crowd:
            crowd.begin()
        elif self.profile is STRANGERS:
            Strangers(self.world, self.judge, self.cast, self.producers).begin()
        elif self.profile is OPERATED:
            Operators(self.world, self.judge, self.cast, self.producers).begin()
        elif self.profile is FLOW:
            FlowActors(self.world, self.judge, self.cast, self.producers).begin()
        elif self.cron:
            self.cron.begin()
        elif self.is_partitioned:
            PartitionActors(self.world, self.judge, self.cast, self.producers).begin()
        elif self.profile is PROMPT:
            self._keep_awake()
        if self.profile is TURNS:
            Turns(self.cast)
            return
        for _ in range(chance.choice((1, 1, 2)) if self.is_shared else 0):
            PullWorker(self.cast, self.lasts, threads=chance.choice((2, 3, 4)), after=chance.random())
        if chance.random() < self.profile.pulls:
            worker = PullWorker(self.cast, float("inf") if self.profile.pulls_only else self.lasts)
            if self.profile.name == "heartbeats" and self.world.seed % TWINS_OF == TWINS:
                PullWorker(self.cast, self.lasts, after=0.3, twin=worker)
        for _ in range(chance.choice((1, 1, 2))):
            every = 2.0 if self.profile is PROMPT else chance.uniform(1.5, 4.0)
            if self.cron and chance.random() < 0.4:
                # Nobody sweeps for a while: instants may be missed.
                after, sweep = chance.random() * 25.0, partial(sweeping, self.cast, self.fleet.dispatch, every)
                self.world.at(self.world.now + after, sweep)
                continue
            sweeping(self.cast, self.fleet.dispatch, every)
            if crowd:
                break  # what one tick dispatches is counted
        if self.profile.configures:
            configuring(self.cast, self.profile.configures)
            renaming(self.cast, self.profile.configures)
        if self.settings.keep_payload:
            rerunning(self.cast, self.lasts * 0.7)
        if self.world.seed % 40 == EDITED:
            for part in (0.5, 0.75, 0.9):
                editing(self.cast, self.lasts * part)
            replaying(self.cast, self.lasts * 0.7)
        if self.world.seed % EDITED_GROUPS_OF == EDITED_GROUPS:
            for part in (0.5, 0.5, 0.75, 0.9):
                editing(self.cast, self.lasts * part, groups=True)
            for part in (0.5, 0.75):
                replaying(self.cast, self.lasts * part)
        if self.profile.operator:
            replaying(self.cast, self.lasts * chance.uniform(0.4, 1.0))
            replaying(self.cast, self.lasts * chance.uniform(0.4, 1.0))

    def _keep_awake(self) -> None:
        """Something that is due in less than a minute: the sweeper stays."""
        path = f"delayed/{format_due(EPOCH + timedelta(seconds=58))}/keeps-awake"
        self.world.store.put(f"{QUEUE}/{path}", b'{"id": "awake", "takes": 0.1, "plan": "k"}')

    def _watch_for_quiet(self) -> None:
        if not (leftovers(self.world) or self.fleet.busy or self.world.in_flight or self.producers.at_work):
            self._is_quiet = True
        elif not self.judge.violations:
            self.world.at(self.world.now + 1.0, self._watch_for_quiet)
        else:
            self._is_quiet = True


@contextmanager
def silenced() -> Iterator[None]:
    """Sweepers log what they could not do, and here they often cannot."""
    logs = {log: log.level for log in map(logging.getLogger, ("s3queue", "handlers", "spark"))}
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in logs.items():
            log.setLevel(level)


def _profile_of(seed: int) -> Profile | None:
    """Some seeds have worlds of their own; which, does not depend on what is drawn."""
    drawn = {7: CROWDED, 17: STRANGERS, 21: FLOW, 33: TURNS, 37: OPERATED}.get(seed % 40)
    return drawn or (PROMPT if seed % 10 == 3 else None)


@contextmanager
def short_lines() -> Iterator[None]:
    """Every line of a batch counts as one that is too long to be held in memory when it is buried, and a letter's
    metadata has room for one kind of error only.
    """
    kept = outcomes.HELD_BYTES, dead_facts.TYPES_CHARACTERS
    outcomes.HELD_BYTES, dead_facts.TYPES_CHARACTERS = SHORT_LINE, ONE_ERROR
    try:
        yield
    finally:
        outcomes.HELD_BYTES, dead_facts.TYPES_CHARACTERS = kept


def run(seed: int) -> Verdict:
    if seed % ROUNDS_EVERY == 27:
        return _run_rounds(seed)
    if seed % ROUNDS_EVERY in (22, 39):
        return _run_flows(seed)
    if seed % ROUNDS_EVERY == 36:
        return _run_spark(seed)
    return Schedule(seed).run()


def _run_rounds(seed: int) -> Verdict:
    # Only here: it imports the sweeper function, and most processes that hunt for a bug do not need it.
    from .rounds import ROUNDS, Rounds

    world = World(seed, faults=None, watcher=None)  # type: ignore[arg-type]
    world.watcher = rounds = Rounds(world)
    with silenced(), greenlets():
        try:
            rounds.run()
        finally:
            world.close()
    counts: Counter[str] = Counter()
    for judge in rounds.judges.values():
        counts += tally(judge)
    return Verdict(seed, ROUNDS.name, rounds.violations(), counts, world.trace)


def _run_flows(seed: int) -> Verdict:
    from .member_schedules import MemberSchedule

    world = World(seed, faults=None, watcher=None)  # type: ignore[arg-type]
    world.watcher = schedule = MemberSchedule(world)
    with silenced(), greenlets(), short_lines(), small_records(), small_windows(world):
        try:
            schedule.run()
        finally:
            world.close()
    return Verdict(seed, "flows", schedule.violations(), schedule.counts(), world.trace)


def _run_spark(seed: int) -> Verdict:
    from .spark_jobs import spark_greenlets
    from .spark_schedules import SparkSchedule

    world = World(seed, faults=None, watcher=None)  # type: ignore[arg-type]
    world.watcher = schedule = SparkSchedule(world)
    with silenced(), greenlets(), spark_greenlets(), short_lines(), small_windows(world):
        try:
            schedule.run()
        finally:
            world.close()
    name = f"Spark runs, {schedule.profile.name}"
    return Verdict(seed, name, schedule.violations(), schedule.counts(), world.trace)
