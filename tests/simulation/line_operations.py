"""Operations of the crash matrix that replay some dead lines of a batch, while somebody else replays others."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from s3queue.errors import QueueError, Unavailable

from .functions import Container
from .stage import SETTINGS, Plot, Stage, batch

LETTER = "messages/b.ndjson.lines"
#: When the other operator comes: in the middle of it, and when whoever is on trial is done, dead or asleep.
MEANWHILE = (0.02, 1.5)


def _choose(operator: Container, error_type: str) -> None:
    """Whoever has no answer asks again."""
    for _ in range(2):
        with suppress(Unavailable):
            operator.queue.letters().replay(LETTER, error_type=error_type)
            return


def _choices(stage: Stage) -> str:
    """Its lines died of two errors; each operator replays those of one, and the second one then does the first one's
    work once more, should that have died.
    """
    # Replays heal nothing here: their lines die again, with letters of their own.
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    path = stage.put("b.ndjson", batch("k", "r", "f"))
    for number in range(SETTINGS.max_attempts):
        stage.prepare(lambda helper, number=number: helper.processor.run(path, read_first=number > 0))  # type: ignore[misc]

    def others() -> None:
        for error_type in ("HandlerFailed", "Reject"):
            with suppress(QueueError):
                _choose(stage.helper, error_type)
            stage.world.sleep(0.5)

    stage.act(lambda worker: _choose(worker, "Reject"))
    for after in MEANWHILE:
        stage.world.spawn(stage.helper.process, others, after=after)
    return path


CHOSEN: dict[str, Plot] = {"replay some dead lines beside others": _choices}
