"""Operations of the crash matrix that take a message from its worker, who may be dead, or not."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from s3queue.errors import QueueError

from .stage import Plot, Stage, batch, script
from .world import QUEUE


def _release_dead(name: str, body: bytes, before: int = 0) -> Plot:
    """Its worker died in the middle of it; `before` attempts have failed already."""

    def plot(stage: Stage) -> str:
        path = stage.put(name, body)
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        for number in range(before):
            stage.prepare(lambda helper, number=number: helper.processor.run(path, read_first=number > 0))  # type: ignore[misc]
        stage.kill_after(stage.helper.process, f"{QUEUE}/leases/{path}")
        stage.world.spawn(stage.helper.process, lambda: stage.helper.processor.run(path, read_first=before > 0))
        stage.world.run(stage.world.now + 1.0)
        stage.act(lambda worker: worker.queue.release_held(path))
        return path

    return plot


def _release_at_work(name: str, body: bytes) -> Plot:
    """Its worker is alive after all, and goes on."""

    def plot(stage: Stage) -> str:
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        path = stage.put(name, body)
        stage.world.spawn(stage.helper.process, stage.helper.processor.run, path)
        stage.world.run(stage.world.now + 0.5)
        stage.act(lambda worker: worker.queue.release_held(path))
        return path

    return plot


def _work_on_released(name: str, body: bytes, *, again: bool) -> Plot:
    """The worker may die, or sleep, at any request; it is taken for dead, and another one runs the message."""

    def plot(stage: Stage) -> str:
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        path = stage.put(name, body)

        def release() -> None:
            stage.world.sleep(0.7)
            with suppress(QueueError):
                stage.helper.queue.release_held(path)
            if again:
                stage.helper.processor.run(path, read_first=True)

        stage.world.spawn(stage.helper.process, release)
        stage.act(lambda worker: worker.processor.run(path))
        return path

    return plot


RELEASED: dict[str, Plot] = {
    "release what a dead worker holds": _release_dead("m", script("m", "k")),
    "release the second attempt of a dead worker": _release_dead("m", script("m", "fk"), before=1),
    "release what is at work": _release_at_work("m", script("m", "k", takes=1.5)),
    "release what is at work and fails": _release_at_work("m", script("m", "fffff", takes=1.5)),
    "release a batch at work": _release_at_work("b.ndjson", batch("k", "fk", "r", takes=0.4)),
    "work on what is released": _work_on_released("m", script("m", "k", takes=1.5), again=False),
    "work on what is released and run by another": _work_on_released("m", script("m", "k", takes=1.5), again=True),
    "work on a batch that is released": _work_on_released("b.ndjson", batch("k", "k", takes=0.5), again=True),
}
