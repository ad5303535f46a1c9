"""Those who enqueue into groups and shared partitions, PUT names anew, and delete by hand."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

from s3queue.errors import Conflict, QueueError, Unavailable
from s3queue.paths import partition_of

from .cast import Cast
from .faults import Profile, draw_profile
from .flow import DEDUP_SECONDS
from .judge import Judge
from .machines import Process
from .partition_worlds import MOVES
from .producers import Producers
from .world import World

#: Seeds of these remainders have partitions.
PARTITIONED = (10, 18, 24, 34)
#: Seeds of this remainder, of twice as many, have pull workers whose threads share the many messages of a partition.
SHARED, SHARED_OF = 74, 80
GROUPS = ("a", "b/c")
#: Where messages with an id of their own go; None: into no group.
IDS = ("a", "a", None)


def draw_partitioned(chance: random.Random) -> Profile:
    """One of the ways in which a day can go wrong, for a queue with partitions."""
    profile = draw_profile(chance)
    while profile.exact or profile.pulls_only:
        profile = draw_profile(chance)
    sends, operator = 0.6 * (chance.random() < 0.4), chance.random() < 0.35
    return replace(profile, name=f"partitions, {profile.name}", sends=sends, operator=operator)


class PartitionActors:
    """Producers who share a few partitions, and an operator who deletes what lies in them."""

    def __init__(self, world: World, judge: Judge, cast: Cast, producers: Producers) -> None:
        self.world = world
        self.judge = judge
        self.cast = cast
        self._producers = producers

    def begin(self) -> None:
        chance = self.world.random
        if self.world.seed % SHARED_OF == SHARED:
            for _ in range(chance.choice((1, 2))):
                process = self.cast.process("producer")
                self._producers.keep(process, lambda process=process: self._fill(process))  # type: ignore[misc]
        works: list[Any] = [self._enqueue_in_order] * chance.choice((1, 2, 2)) + [self._put_anew] * chance.choice(
            (0, 2)
        )
        if self.cast.settings.partitions:
            works += [self._share] * chance.choice((1, 2))
        works += [self._enqueue_once] * chance.choice((0, 0, 2))
        operators: list[Any] = [self._delete_by_hand] * (chance.random() < 0.3)
        operators += [self._cancel] * chance.choice((0, 0, 1, 2))
        operators += [self._rerun] * (2 if self.cast.settings.keep_payload else 0)
        if self.cast.settings.history and not self.cast.settings.collect and chance.random() < 0.3:
            operators.append(self._move)
        for work in works + operators:
            process = self.cast.process("operator" if work in operators else "producer")
            self._producers.keep(process, lambda work=work, process=process: work(process))  # type: ignore[misc]

    def _script(self, name: str) -> bytes:
        """As of any message; it may also be postponed, or, where messages are collected, let all of its call fail."""
        script, chance = json.loads(self._producers.script(name)), self.world.random
        if chance.random() < 0.15:
            script["postpones"] = chance.choice((1, 2))
        if self.cast.settings.collect and chance.random() < 0.3:
            script["raises"] = True
        return json.dumps(script).encode()

    def _where(self) -> dict[str, str]:
        chance = self.world.random
        if self.cast.settings.partitions and chance.random() < 0.4:
            return {}
        return {"group": chance.choice(GROUPS)}

    def _enqueue_in_order(self, process: Process) -> None:
        """One after the other: their names are in that order, and so they start."""
        queue, chance = self.cast.queue(process), self.world.random
        group = chance.choice(GROUPS)
        for number in range(chance.choice((2, 3, 4, 5))):
            self.world.sleep(chance.random() * chance.choice((0.1, 4.0)))
            try:
                queue.enqueue(self._script(f"{process.name}-{number}"), group=group)
            except QueueError:
                continue

    def _share(self, process: Process) -> None:
        chance = self.world.random
        for number in range(chance.choice((2, 4, 6))):
            self.world.sleep(chance.random() * chance.choice((0.1, 2.0)))
            try:
                # As a producer that was just deployed: the number of partitions may have been changed.
                self.cast.queue(process).enqueue(self._script(f"{process.name}-{number}"))
            except QueueError:
                continue

    def _fill(self, process: Process) -> None:
        """More than one window, within a few seconds; now and then one of the names again, with other bytes."""
        queue, chance = self.cast.queue(process), self.world.random
        for number in range(chance.choice((8, 12, 16))):
            self.world.sleep(chance.random() * chance.choice((0.1, 0.1, 1.0)))
            name = f"{process.name}-{number}"
            if number > 2 and self.cast.profile.re_puts and chance.random() < 0.3:
                name = f"{process.name}-{chance.randrange(number)}"
            try:
                queue.enqueue(self._script(f"{process.name}-{number}"), name=name)
            except QueueError:
                continue

    def _put_anew(self, process: Process) -> None:
        """One name, several times, with equal bytes or others."""
        queue, chance, profile = self.cast.queue(process), self.world.random, self.cast.profile
        where = self._where()
        name = f"{chance.choice('0z')}-{process.name}"
        body = self._script(f"{process.name}-0")
        for number in range(1 if not profile.re_puts else chance.choice((2, 3, 4))):
            self.world.sleep(chance.choice((0.3, 2.0, 8.0, 16.0)) * chance.random())
            if number and not (profile.equal_re_puts and chance.random() < 0.6):
                body = self._script(f"{process.name}-{number}")
            for _ in range(3):
                try:
                    queue.enqueue(body, name=name, **where)
                except Unavailable:
                    continue
                except QueueError:
                    pass
                break

    def _delete_by_hand(self, process: Process) -> None:
        queue, chance = self.cast.queue(process), self.world.random
        for _ in range(3):
            self.world.sleep(chance.random() * 6.0)
            paths = sorted(path for path in self.judge.ledger.present if partition_of(path))
            if paths:
                try:
                    queue.remove(chance.choice(paths))
                except QueueError:
                    continue

    def _enqueue_once(self, process: Process) -> None:
        """Ids that count for a while, in a group and beside it; two of these producers share them."""
        queue, chance = self.cast.queue(process), self.world.random
        for turn in range(5):
            self.world.sleep(chance.random() * 5.0)
            body, where = self._script(f"{process.name}-{turn}"), chance.choice(IDS)
            for _ in range(3):
                try:
                    path = queue.enqueue(body, dedup_id=f"id of {where}", dedup_for=DEDUP_SECONDS, group=where)
                except QueueError:
                    continue
                self.judge.dedup.check_named(path)
                break

    def _cancel(self, process: Process) -> None:
        """Whatever a message is at: while its partition is held, the answer is a Conflict, and nothing changes."""
        queue, chance = self.cast.queue(process), self.world.random
        for _ in range(6):
            self.world.sleep(chance.random() * 4.0)
            paths = sorted(path for path in self.judge.ledger.present if partition_of(path))
            path = chance.choice(paths) if paths else ""
            for _ in range(3 if path else 0):
                try:
                    queue.cancel(path)
                except (Unavailable, Conflict):
                    self.world.sleep(chance.random())
                    continue
                except QueueError:
                    pass
                break

    def _rerun(self, process: Process) -> None:
        """Replays what was completed, and asks again, also when that has run."""
        queue, chance = self.cast.queue(process), self.world.random
        for _ in range(3):
            self.world.sleep(chance.random() * 8.0)
            ended = [life.record for life in self.judge.ledger.all() if life.record and partition_of(life.path)]
            records = [record for record in ended if record.outcome == "completed"]
            record = chance.choice(records) if records else None
            for _ in range(chance.choice((1, 3)) if record else 0):
                try:
                    queue.replay(record.path, of=record)  # type: ignore[union-attr]
                except Unavailable:
                    pass
                except QueueError:
                    break
                self.world.sleep(chance.random() * chance.choice((0.1, 6.0)))

    def _move(self, process: Process) -> None:
        """The queue is deployed with another number of partitions; its running workers keep the one they have."""
        for _ in range(3):
            self.world.sleep(self.world.random.random() * 6.0)
            self.cast.define(replace(self.cast.settings, partitions=self.world.random.choice(MOVES)))
