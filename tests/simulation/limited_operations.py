"""What a rate, a breaker and Postpone add to the crash matrix: killed, or asleep, at each of these requests, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from s3queue.limits import Breaker

from .functions import Container
from .stage import SETTINGS, Plot, Stage, batch, script


def _limited(name: str, body: bytes, **settings: Any) -> Plot:
    """One invocation for one message of a queue with limits, which others keep, too."""

    def plot(stage: Stage) -> str:
        limited = replace(SETTINGS, **settings)
        stage.cast.settings = limited
        stage.worker.queue.settings = stage.worker.queue.defined = limited
        path = stage.put(name, body)
        stage.act(lambda worker: worker.processor.run(path))
        return path

    return plot


def _probe(plan: str) -> Plot:
    """The one message that runs after the pause of a breaker."""

    def plot(stage: Stage) -> str:
        limited = replace(SETTINGS, breaker=Breaker(failures=1, pause=2))
        stage.cast.settings = limited
        for container in (stage.worker, stage.helper):
            container.queue.settings = container.queue.defined = limited
        first, path = stage.put("a", script("a", "fk")), stage.put("m", script("m", plan))

        def stop(helper: Container) -> None:
            helper.processor.run(first)

        stage.prepare(stop)
        stage.act(lambda worker: worker.processor.run(path))
        return path

    return plot


LIMITED: dict[str, Plot] = {
    "claim with a token, complete": _limited("m", script("m", "k"), rate="3/s"),
    "claim with a token, a batch": _limited("b.ndjson", batch("k", "fk", "k"), rate="3/s"),
    "postpone, then complete": _limited("m", script("m", "k", postpones=1)),
    "postpone a line, another fails": _limited(
        "b.ndjson", b"".join((script("a", "fk"), b"\n", script("b", "k", postpones=1), b"\n"))
    ),
    "probe, and close the breaker": _probe("k"),
    "probe, and open the breaker again": _probe("fk"),
}
