"""Operations of the crash matrix that keep payloads, and replay completed messages."""

from __future__ import annotations

from dataclasses import replace

from s3queue.errors import QueueError, Unavailable

from .functions import Container
from .stage import Plot, Stage, batch, script
from .world import QUEUE


def _keeping(worker: Container) -> Container:
    worker.queue.settings = replace(worker.queue.settings, keep_payload=True)
    return worker


def _complete(name: str, body: bytes) -> Plot:
    """Whoever repairs it does not know the setting: the record says it."""

    def plot(stage: Stage) -> str:
        path = stage.put(name, body)
        stage.act(lambda worker: _keeping(worker).processor.run(path))
        return path

    return plot


def _re_put(stage: Stage) -> str:
    """The name is PUT anew, with other bytes, while the handler runs."""
    path = stage.put("m", script("m", "k", takes=1.0))
    etag = stage.world.objects[f"{QUEUE}/{path}"].etag
    stage.world.at(stage.world.now + 0.5, lambda: stage.put("m", script("n", "k")))
    stage.act(lambda worker: _keeping(worker).processor.run(path, etag=etag))
    return path


def _replay(stage: Stage) -> str:
    """An operator who repeats a replay that has no answer, and repeats it once more when it has run."""
    path = stage.put("m", script("m", "k"))
    # It runs twice, and no script says so.
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    stage.prepare(lambda helper: _keeping(helper).processor.run(path))

    def replay(worker: Container) -> None:
        seen = worker.queue.outcomes.read(path)
        for _ in range(2):
            try:
                worker.queue.replay(path, of=seen)
            except Unavailable:
                worker.queue.replay(path, of=seen)
            _keeping(worker).processor.run(path)

    stage.act(replay)
    return path


def _replay_uncleared(stage: Stage) -> str:
    """Its worker died between the two deletes of a second attempt: its lease is still there, and equal bytes come."""
    path = stage.put("m", script("m", "fk"))
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    stage.kill_after(stage.helper.process, f"{QUEUE}/{path}")

    def work(helper: Container) -> None:
        for _ in range(2):
            _keeping(helper).processor.run(path, read_first=True)
            stage.world.sleep(2.0)

    def replay(worker: Container) -> None:
        seen = worker.queue.outcomes.read(path)
        for _ in range(20):
            try:
                worker.queue.replay(path, of=seen)
                return
            except QueueError:
                stage.world.sleep(1.0)

    stage.prepare(work)
    stage.act(replay)
    return path


KEPT: dict[str, Plot] = {
    "complete, keep the payload": _complete("m", script("m", "k")),
    "batch, keep the payload": _complete("b.ndjson", batch("k", "k")),
    "batch, a line rejected, keep the payload": _complete("b.ndjson", batch("k", "r")),
    "re-PUT at work, keep the payload": _re_put,
    "replay a completed message": _replay,
    "replay a completed message before it is cleared away": _replay_uncleared,
}
