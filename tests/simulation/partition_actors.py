"""Those who enqueue into groups and shared partitions, PUT names anew, and delete by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from s3queue.errors import QueueError, Unavailable
from s3queue.keys import partition_of

from .cast import Cast
from .faults import Profile, draw_profile
from .judge import Judge
from .machines import Process
from .producers import Producers
from .world import World

#: Seeds of these remainders have partitions.
PARTITIONED = (10, 18, 24, 34)
GROUPS = ("a", "b/c")


def draw_partitioned(chance: random.Random) -> Profile:
    """One of the ways in which a day can go wrong, for a queue with partitions."""
    profile = draw_profile(chance)
    while profile.exact or profile.pulls_only:
        profile = draw_profile(chance)
    return replace(profile, name=f"partitions, {profile.name}", sends=0.6 * (chance.random() < 0.4), operator=False)


class PartitionActors:
    """Producers who share a few partitions, and an operator who deletes what lies in them."""

    def __init__(self, world: World, judge: Judge, cast: Cast, producers: Producers) -> None:
        self.world = world
        self.judge = judge
        self.cast = cast
        self._producers = producers

    def begin(self) -> None:
        chance = self.world.random
        works: list[Any] = [self._enqueue_in_order] * chance.choice((1, 2, 2)) + [self._put_anew] * chance.choice(
            (0, 2)
        )
        if self.cast.settings.partitions:
            works += [self._share] * chance.choice((1, 2))
        if chance.random() < 0.3:
            works.append(self._delete_by_hand)
        for work in works:
            process = self.cast.process("operator" if work == self._delete_by_hand else "producer")
            self._producers.keep(process, lambda work=work, process=process: work(process))  # type: ignore[misc]

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
                queue.enqueue(self._producers.script(f"{process.name}-{number}"), group=group)
            except QueueError:
                continue

    def _share(self, process: Process) -> None:
        queue, chance = self.cast.queue(process), self.world.random
        for number in range(chance.choice((2, 4, 6))):
            self.world.sleep(chance.random() * chance.choice((0.1, 2.0)))
            try:
                queue.enqueue(self._producers.script(f"{process.name}-{number}"))
            except QueueError:
                continue

    def _put_anew(self, process: Process) -> None:
        """One name, several times, with equal bytes or others."""
        queue, chance, profile = self.cast.queue(process), self.world.random, self.cast.profile
        where = self._where()
        name = f"{chance.choice('0z')}-{process.name}"
        body = self._producers.script(f"{process.name}-0")
        for number in range(1 if not profile.re_puts else chance.choice((2, 3, 4))):
            self.world.sleep(chance.choice((0.3, 2.0, 8.0, 16.0)) * chance.random())
            if number and not (profile.equal_re_puts and chance.random() < 0.6):
                body = self._producers.script(f"{process.name}-{number}")
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
