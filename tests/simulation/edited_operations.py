"""Operations of the crash matrix that replay a dead letter with another payload."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from s3queue.errors import Conflict, MessageNotFound, QueueError, Unavailable
from s3queue.paths import format_due

from .edits import repaired
from .functions import Container
from .machines import EPOCH
from .stage import Plot, Stage, script
from .world import QUEUE

#: When somebody else replays the letter that may have been edited: by then, whoever edited it has done so, or is dead.
LATER = 3.0


def edit(operator: Container, path: str, body: bytes) -> None:
    """Whoever has no answer asks again."""
    for _ in range(2):
        with suppress(Unavailable):
            operator.queue.replay_edited(path, body)
            return


def _dead(stage: Stage, body: bytes) -> str:
    # An edited message runs once more, and no script says so.
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    path = stage.put("m", body)
    stage.prepare(lambda helper: helper.processor.run(path))
    return path


def _edited(stage: Stage) -> str:
    body = script("m", "r")
    path = _dead(stage, body)
    stage.act(lambda worker: edit(worker, path, repaired(body)))
    return path


def _edited_and_replayed(stage: Stage) -> str:
    """Somebody else replays the letter, if it is still there, when the edited message has run."""
    body = script("m", "r", heals="k")
    path = _dead(stage, body)

    def replay() -> None:
        with suppress(QueueError):
            stage.helper.queue.letters().replay(path)

    stage.act(lambda worker: edit(worker, path, repaired(body)))
    for after in (0.05, LATER, 4 * LATER):
        stage.world.spawn(stage.helper.process, replay, after=after)
    return path


def _replayed_and_edited(stage: Stage) -> str:
    """The letter was replayed, and its replay has run; only the letter is still there, because its replayer died."""
    body = script("m", "r", heals="k")
    path = _dead(stage, body)
    stage.kill_after(stage.helper.process, f"{QUEUE}/{path}")
    stage.prepare(lambda helper: helper.queue.letters().replay(path))

    def run_and_edit(worker: Container) -> None:
        worker.processor.run(path)
        edit(worker, path, repaired(body))

    stage.act(run_and_edit)
    return path


def _edited_twice(stage: Stage) -> str:
    """Two operators repair the same letter in different ways."""
    body = script("m", "r")
    path = _dead(stage, body)
    other = repaired(script("n", "r"))
    stage.act(lambda worker: edit(worker, path, repaired(body)))

    def edit_too() -> None:
        with suppress(QueueError):
            edit(stage.helper, path, other)

    for after in (0.05, LATER):
        stage.world.spawn(stage.helper.process, edit_too, after=after)
    return path


def _edited_beside_another(stage: Stage) -> str:
    """A message of that name has come meanwhile: neither may be lost."""
    body = script("m", "r")
    path = _dead(stage, body)
    stage.put("m", script("n", "k", takes=1.0))
    stage.act(lambda worker: edit(worker, path, repaired(body)))
    return path


def _edited_after_two_puts(stage: Stage) -> str:
    """Its producer's first PUT lands while the second is at work: equal bytes are one message, and one death."""
    body = script("m", "r", takes=1.5)
    stage.world.at(stage.world.now + 1.2, lambda: stage.put("m", body))
    path = _dead(stage, body)
    stage.act(lambda worker: edit(worker, path, repaired(body)))
    return path


def _edited_in_a_burial(stage: Stage) -> str:
    """A delayed message has another name than its replay: it may still lie there while its letter is edited. Whoever
    goes on with its burial must not write the letter again: it would be replayed a second time.
    """
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    body = script("m", "r")
    path = f"delayed/{format_due(EPOCH)}/m"
    stage.world.store.put(f"{QUEUE}/{path}", body)
    stage.kill_after(stage.helper.process, f"{QUEUE}/dead/{path}")
    stage.prepare(lambda helper: helper.processor.run(path))

    def edit_again(worker: Container) -> None:
        for _ in range(5):
            with suppress(Conflict, MessageNotFound):
                edit(worker, path, repaired(body))
            stage.world.sleep(2.0)
            letters = [at for at, _ in stage.judge.letters.written[path]]
            if len(letters) > 1:
                stage.judge.broken("P3", f"{path} died once, and has had {len(letters)} letters")

    stage.act(edit_again)
    return path


#: What catches the most comes early in a hunt.
EDITED: dict[str, Plot] = {
    "edit and replay a letter": _edited,
    "edit a letter in the middle of its burial": _edited_in_a_burial,
}
EDITED_BESIDE: dict[str, Plot] = {
    "edit a letter that somebody else replays": _edited_and_replayed,
    "edit a letter whose replay has run": _replayed_and_edited,
    "edit a letter twice": _edited_twice,
    "edit a letter beside another message of its name": _edited_beside_another,
    "edit the letter of what was PUT twice": _edited_after_two_puts,
}
