"""Operations of the crash matrix that replay what nobody could read where it lies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from s3queue.errors import QueueError, Unreadable
from s3queue.paths import partition_of

from .functions import Container
from .machines import Process
from .partition_operations import replay_surely
from .stage import SETTINGS, Plot, Stage, script
from .world import QUEUE

#: When somebody else replays the letter: by then, whoever is on trial has done so, or is dead or asleep.
LATER = 1.5
Source = Callable[[Stage], str]


def _plain(stage: Stage) -> str:
    return stage.put("m", script("m", "r", heals="k"))


def _once(group: str | None = None) -> Source:
    """With an id that counts for a while."""

    def source(stage: Stage) -> str:
        paths: list[str] = []
        body = script("m", "r", heals="k")

        def enqueue(helper: Container) -> None:
            paths.append(helper.queue.enqueue(body, dedup_id="order-17", dedup_for=12.0, group=group))

        stage.prepare(enqueue)
        return paths[0]

    return source


def _sent(stage: Stage) -> str:
    path = stage.put("sender", script("sender", "k", sends=1, sent_plan="r", sent_more={"heals": "k"}))
    stage.prepare(lambda helper: helper.processor.run(path))
    return next(iter(stage.judge.ledger.present))


def _replayed(stage: Stage) -> str:
    """It died before, and was replayed."""
    path = stage.put("m", script("m", "r", heals="r"))
    stage.prepare(lambda helper: helper.processor.run(path))
    stage.prepare(lambda helper: helper.queue.letters().replay(path))
    return path


def _archive(stage: Stage, path: str) -> None:
    """Nobody can copy the message that has just died; its handler has run."""
    performed, partition = stage.performed, partition_of(path)
    commit = f"{QUEUE}/leases/{partition}" if partition else f"{QUEUE}/records/{path}"

    def watched(process: Process, operation: str, key: str, sent_at: float, before: Any, after: Any) -> None:
        performed(process, operation, key, sent_at, before, after)
        if key == commit and any(life.record for life in stage.judge.ledger.lives[path]):
            stage.world.store.refused[f"{QUEUE}/{path}"] = Unreadable

    stage.performed = watched


def _replay(source: Source, *, has_run: bool = False) -> Plot:
    """It dies where it lies; once it can be read again, two operators replay it, one after the other."""

    def plot(stage: Stage) -> str:
        # Whoever replays it comes between its attempts.
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        path, refused = source(stage), stage.world.store.refused
        if has_run:
            _archive(stage, path)
        else:
            refused[f"{QUEUE}/{path}"] = Unreadable
        for number in range(SETTINGS.max_attempts):
            stage.prepare(lambda helper, number=number: helper.processor.run(path, read_first=number > 0))  # type: ignore[misc]
        stage.performed = stage.judge.performed
        refused.clear()

        def again() -> None:
            with suppress(QueueError):
                stage.helper.queue.letters().replay(path)

        stage.act(replay_surely(path))
        stage.world.spawn(stage.helper.process, again, after=LATER)
        return path

    return plot


UNREAD: dict[str, Plot] = {
    "replay what could not be read, with an id that counts for a while": _replay(_once()),
    "replay what could not be read": _replay(_plain),
    "replay what could not be copied, with an id that counts for a while": _replay(_once(), has_run=True),
    "replay what could not be copied, and was sent": _replay(_sent, has_run=True),
    "replay what could not be copied, and was replayed before": _replay(_replayed, has_run=True),
    "group, replay what could not be read": _replay(_once("a")),
    "group, replay what could not be copied": _replay(_once("a"), has_run=True),
}
