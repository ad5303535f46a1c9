"""The operations of the flow that the crash matrix tries: cancelling, and an id that counts for a while."""

from __future__ import annotations

from dataclasses import replace

from .functions import Container
from .stage import Plot, Stage, batch, script
from .world import QUEUE


def _cancel(name: str, body: bytes, before: int = 0) -> Plot:
    """Cancel a message that waits; `before` attempts have failed already."""

    def plot(stage: Stage) -> str:
        # It runs as often as nobody has cancelled it.
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        path = stage.put(name, body)
        for number in range(before):
            stage.prepare(lambda helper, number=number: helper.processor.run(path, read_first=number > 0))  # type: ignore[misc]
        stage.act(lambda worker: worker.queue.cancel(path))
        return path

    return plot


def purge(name: str, body: bytes) -> Plot:
    """Purge a message that waits for its second attempt. If the purge crashes, that is its last one."""

    def plot(stage: Stage) -> str:
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        path = stage.put(name, body)
        stage.prepare(lambda helper: helper.processor.run(path))
        stage.act(lambda worker: worker.queue.purge_one(path))
        return path

    return plot


def _purge_recorded(stage: Stage) -> str:
    """It was released by hand, and its worker, who lived, recorded an outcome and died before the message went."""
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    path = stage.put("m", script("m", "k", takes=1.5))
    stage.world.spawn(stage.helper.process, stage.helper.processor.run, path)
    stage.world.run(stage.world.now + 0.5)
    stage.kill_after(stage.helper.process, f"{QUEUE}/records/{path}")
    operator = Container(stage.cast, "operator")
    stage.world.spawn(operator.process, operator.queue.release_held, path)
    stage.world.run(stage.world.now + 4.0)
    stage.act(lambda worker: worker.queue.purge_one(path))
    return path


def _cancel_at_work(stage: Stage) -> str:
    """Another process works on it meanwhile, and completes it."""
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    path = stage.put("m", script("m", "k", takes=1.5))
    stage.world.spawn(stage.helper.process, stage.helper.processor.run, path)
    stage.world.run(stage.world.now + 0.5)
    stage.act(lambda worker: worker.queue.cancel(path))
    return path


def _cancelled_at_work(stage: Stage) -> str:
    """The process that works on it may die at any request; another one cancels the message meanwhile."""
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    path = stage.put("m", script("m", "k", takes=1.5))

    def cancel() -> None:
        stage.world.sleep(2.7)
        stage.helper.queue.cancel(path)

    def work(worker: Container) -> None:
        stage.world.sleep(2.0)  # not within the second of its PUT: then a cancel may be refused
        worker.processor.run(path)

    stage.world.spawn(stage.helper.process, cancel)
    stage.act(work)
    return path


def _enqueue_once(stage: Stage) -> str:
    """With an id that counts for a while; another producer repeats it."""

    def send(worker: Container) -> None:
        worker.queue.enqueue(script("m", "k"), dedup_id="order-17", dedup_for=12.0)

    def again() -> None:
        stage.world.sleep(3.0)
        path = stage.helper.queue.enqueue(script("m", "k"), dedup_id="order-17", dedup_for=12.0)
        stage.judge.dedup.check_named(path)

    stage.world.spawn(stage.helper.process, again)
    stage.act(send)
    return "messages/m"


FLOW_OPERATIONS: dict[str, Plot] = {
    "cancel a pending message": _cancel("m", script("m", "k")),
    "cancel a waiting message": _cancel("m", script("m", "fk"), before=1),
    "cancel a waiting batch": _cancel("b.ndjson", batch("k", "fk", "r"), before=1),
    "purge a message that waits": purge("m", script("m", "f")),
    "purge a batch that waits": purge("b.ndjson", batch("k", "f", "r")),
    "purge a message that waits and has an outcome": _purge_recorded,
    "cancel what is at work": _cancel_at_work,
    "work on what is cancelled": _cancelled_at_work,
    "enqueue with an id that counts for a while": _enqueue_once,
}
