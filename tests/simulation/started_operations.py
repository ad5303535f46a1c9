"""Flows that handlers start, in the crash matrix: with a death at each request of the completion.  [P7] [P8]"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .stage import Plot, Stage, batch, script
from .world import QUEUE


def _message(name: str, plan: str = "k") -> list[Any]:
    return [QUEUE, {"id": name, "takes": 0.1, "plan": plan}]


_FLOW: dict[str, Any] = {"members": [_message("a"), _message("b")], "steps": [_message("c")]}
_WITHIN: dict[str, Any] = {"members": [_message("o"), _FLOW], "steps": []}
_SMALL: dict[str, Any] = {"members": [_message("a", "r")], "steps": []}


def _start(name: str, body: bytes, before: int = 0) -> Plot:
    """One invocation for a message whose handler starts a flow; `before` attempts have failed already."""

    def plot(stage: Stage) -> str:
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        path = stage.put(name, body)
        for number in range(before):
            stage.prepare(lambda helper, number=number: helper.processor.run(path, read_first=number > 0))  # type: ignore[misc]
        stage.act(lambda worker: worker.processor.run(path, read_first=before > 0))
        return path

    return plot


STARTED: dict[str, Plot] = {
    "complete, and start a flow": _start("m", script("m", "k", starts=_FLOW)),
    "complete, and start a flow within a flow": _start("m", script("m", "k", starts=_WITHIN)),
    "complete, start a flow, and send": _start("m", script("m", "k", starts=_SMALL, sends=2)),
    "fail, then complete, and start a flow": _start("m", script("m", "fk", starts=_SMALL), before=1),
    "batch, and start flows": _start("b.ndjson", batch("k", "fk", "r", starts=_SMALL)),
    "group, and start a flow": _start("@a/1", script("m", "k", starts=_FLOW)),
}
