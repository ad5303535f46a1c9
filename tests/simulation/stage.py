"""A stage: a world for one operation of the crash matrix, and what its messages say."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from s3queue.errors import QueueError
from s3queue.paths import is_batch
from s3queue.settings import QueueSettings

from .cast import Cast
from .faults import Profile, ScriptedFaults
from .functions import Container
from .judge import Judge
from .machines import Process
from .world import QUEUE, World

SETTINGS = QueueSettings(
    visibility_timeout=timedelta(seconds=4),
    max_attempts=2,
    retry_base=timedelta(seconds=1),
    retry_cap=timedelta(seconds=1),
    retry_jitter=False,
    rescue_after=timedelta(seconds=3),
)


def script(name: str, plan: str, **more: Any) -> bytes:
    return json.dumps({"id": name, "takes": 0.1, "plan": plan} | more).encode()


def batch(*plans: str, **more: Any) -> bytes:
    return b"".join(script(f"line{number}", plan, **more) + b"\n" for number, plan in enumerate(plans, 1))


class Stage:
    """The process that carries the operation out is `subject-1`."""

    def __init__(self, faults: ScriptedFaults, profile: Profile) -> None:
        self.world = World(0, faults, self)
        self.judge = Judge(self.world, SETTINGS.max_attempts)
        self.cast = Cast(self.world, self.judge, SETTINGS, profile)
        self.performed = self.judge.performed
        self.stepped = self.judge.stepped
        self.hold = self.judge.hold
        self.let_go = self.judge.let_go
        self.broken = self.judge.broken
        self.worker = Container(self.cast, "subject")
        self.helper = Container(self.cast, "helper")
        self.is_finished = False
        #: What is otherwise on this stage than everywhere; it ends with it.
        self.patches = contextlib.ExitStack()

    def put(self, name: str, body: bytes) -> str:
        """A producer's PUT, between two steps of everyone else."""
        path = f"messages/{name}"
        self.world.store.put(f"{QUEUE}/{path}", body)
        return path

    def put_again(self, path: str, bytes_: str) -> None:
        lives = self.judge.ledger.lives.get(path)
        body = (
            lives[-1].body
            if lives and bytes_.startswith("equal")
            else batch("k")
            if is_batch(path)
            else script("again", "k")
        )
        self.put(path.removeprefix("messages/"), body)

    def kill_after(self, doomed: Process, last: str) -> None:
        """Kill a process when it has written this key, or, if it ends with a slash, one below it."""
        performed = self.performed

        def watched(process: Process, operation: str, key: str, *more: Any) -> None:
            performed(process, operation, key, *more)
            if process is doomed and (key == last or (last.endswith("/") and key.startswith(last))):
                self.world.at(self.world.now, lambda: self.world.kill(doomed))

        self.performed = watched  # type: ignore[assignment]

    def prepare(self, step: Callable[[Container], Any]) -> None:
        """Something that happened before, without faults."""
        self.world.spawn(self.helper.process, lambda: step(self.helper))
        self.world.run(self.world.now + 8.0)

    def act(self, step: Callable[[Container], Any]) -> None:
        """The operation on trial. Errors of the queue are answers, not crashes."""

        def trial() -> None:
            with contextlib.suppress(QueueError):
                step(self.worker)
            self.judge.let_go(self.worker.process)
            self.is_finished = True

        self.worker.process.on_death = lambda: setattr(self, "is_finished", True)
        self.world.spawn(self.worker.process, trial)


Plot = Callable[[Stage], str]
