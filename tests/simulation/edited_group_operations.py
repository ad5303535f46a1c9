"""Operations of the crash matrix that replay a letter of a group with another payload.  [P9]"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from s3queue.errors import Conflict, MessageNotFound, QueueError

from .edited_operations import LATER, edit
from .edits import repaired
from .functions import Container
from .stage import Plot, Stage, script
from .world import QUEUE

GROUP = "@a"
#: What died, and what its operators make of it.
BODY = script("m1", "r", heals="k")
OURS, THEIRS = repaired(BODY, by="us"), repaired(BODY, by="them")


def _dead(stage: Stage) -> str:
    # An edited message runs once more, and no script says so.
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    path = stage.put(f"{GROUP}/1", BODY)
    stage.prepare(lambda helper: helper.processor.run(path))
    return path


def _beside(stage: Stage, step: Callable[[Container], object], *times: float) -> None:
    """What somebody else does then. Errors of the queue are answers."""

    def run() -> None:
        with suppress(QueueError):
            step(stage.helper)

    for after in times:
        stage.world.spawn(stage.helper.process, run, after=after)


def _edited(stage: Stage) -> str:
    """Another message of the group has come meanwhile."""
    path = _dead(stage)
    stage.put(f"{GROUP}/2", script("m2", "k"))
    stage.act(lambda worker: edit(worker, path, OURS))
    return path


def _edited_in_a_burial(stage: Stage) -> str:
    """The holder died when it had written the letter: the next one goes on, and must not write it again."""
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    path = stage.put(f"{GROUP}/1", BODY)
    stage.kill_after(stage.helper.process, f"{QUEUE}/dead/{path}")
    stage.prepare(lambda helper: helper.processor.run(path))

    def edit_again(worker: Container) -> None:
        for _ in range(5):
            with suppress(Conflict, MessageNotFound):
                edit(worker, path, OURS)
            stage.world.sleep(2.0)

    stage.act(edit_again)
    return path


def _edited_and_replayed(stage: Stage) -> str:
    path = _dead(stage)
    stage.act(lambda worker: edit(worker, path, OURS))
    _beside(stage, lambda helper: helper.queue.letters().replay(path), 0.05, LATER, 4 * LATER)
    return path


def _edited_twice(stage: Stage) -> str:
    """Two operators repair the same letter in different ways."""
    path = _dead(stage)
    stage.act(lambda worker: edit(worker, path, OURS))
    _beside(stage, lambda helper: edit(helper, path, THEIRS), 0.05, LATER)
    return path


def _replayed_and_edited(stage: Stage) -> str:
    """The letter was replayed, and its replay has run; only the letter is still there, because its replayer died."""
    path = _dead(stage)
    stage.kill_after(stage.helper.process, f"{QUEUE}/messages/{GROUP}/")
    stage.prepare(lambda helper: helper.queue.letters().replay(path))

    def run_and_edit(worker: Container) -> None:
        worker.processor.run(path)
        edit(worker, path, OURS)

    stage.act(run_and_edit)
    return path


EDITED_GROUPS: dict[str, Plot] = {
    "group, edit a letter": _edited,
    "group, edit a letter in the middle of its burial": _edited_in_a_burial,
    "group, edit a letter that somebody else replays": _edited_and_replayed,
    "group, edit a letter twice": _edited_twice,
    "group, edit a letter whose replay has run": _replayed_and_edited,
}
