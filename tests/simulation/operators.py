"""Operators: whoever replays, configures, purges and deletes by hand, in the middle of it."""

from __future__ import annotations

from contextlib import suppress

from s3queue.errors import QueueError, Unavailable

from .cast import Cast


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
