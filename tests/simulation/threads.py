"""Threads of a simulated process: an event and a pool that wait in virtual time, in the place of the standard ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent

from s3queue.flow import held_lease, partition_hold, read_ahead
from s3queue.protocol import dead_letters
from s3queue.worker import partition_run, partition_runs

from .world import Actor, World


class Flag:
    """A `threading.Event` for one thread that waits."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiting: Any = None

    def is_set(self) -> bool:
        return self._is_set

    def clear(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        if self._waiting is not None:
            self._world.wake(self._waiting)
            self._waiting = None

    def wait(self, seconds: float = float("inf")) -> bool:
        if not self._is_set:
            self._waiting = getcurrent()
            self._world.sleep(seconds)
            self._waiting = None
        return self._is_set


class _Task:
    """A `concurrent.futures.Future`."""

    def __init__(self, world: World, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self._result: Any = None
        self._error: Exception | None = None
        self._done = Flag(world)

    def run(self) -> None:
        try:
            self._result = self._function(*self._arguments)
        except Exception as error:
            self._error = error
        self._done.set()

    def cancel(self) -> bool:
        """Every task has a thread at once."""
        return False

    def result(self) -> Any:
        while not self._done.is_set():
            self._done.wait()
        if self._error:
            raise self._error
        return self._result


class Pool:
    """A `ThreadPoolExecutor` whose threads are greenlets of the process that made it."""

    def __init__(self, size: int, name: str = "") -> None:
        self._tasks: list[_Task] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        for task in self._tasks:
            while not task._done.is_set():
                task._done.wait()

    def shutdown(self, *, wait: bool = True, cancel_futures: bool = False) -> None:
        if wait:
            self.__exit__()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> _Task:
        actor = getcurrent()
        assert isinstance(actor, Actor), "only a process has threads"
        task = _Task(actor.world, function, arguments)
        self._tasks.append(task)
        actor.world.spawn(actor.process, task.run)
        return task

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        tasks = [self.submit(function, item) for item in items]
        return (task.result() for task in tasks)


class Mutex:
    """A `threading.RLock` of greenlets: they share one thread of the system, which the real one takes for its owner."""

    def __init__(self) -> None:
        self._owner: Any = None
        self._depth = 0

    def __enter__(self) -> None:
        current = getcurrent()
        while self._owner not in (None, current):
            assert isinstance(current, Actor), "only a process has threads"
            current.world.sleep(0.001)
        self._owner = current
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None


class Condition(Mutex):
    """A `threading.Condition`; whoever waits looks again soon, whether it is notified or not."""

    def wait(self, seconds: float) -> bool:
        current, depth = getcurrent(), self._depth
        assert isinstance(current, Actor), "only a process has threads"
        self._owner, self._depth = None, 0
        current.world.sleep(min(seconds, 0.05))
        self.__enter__()
        self._depth = depth
        return True

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.wait(1.0)

    def notify_all(self) -> None: ...


@contextmanager
def greenlets() -> Iterator[None]:
    """The library's pools are made of greenlets meanwhile."""
    name, locking = "ThreadPoolExecutor", (held_lease, partition_hold, read_ahead, partition_run, partition_runs)
    kept = {module: getattr(module, name) for module in (futures, dead_letters)}
    try:
        for module in kept:
            setattr(module, name, Pool)
        for module in locking:
            vars(module)["threading"] = SimpleNamespace(RLock=Mutex, Lock=Mutex, Condition=Condition)
        yield
    finally:
        for module in locking:
            vars(module)["threading"] = threading
        for module, pool in kept.items():
            setattr(module, name, pool)
