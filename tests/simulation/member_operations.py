"""What flows add to the crash matrix: started, continued, failed and cancelled, with a death at each request.  [P8]"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from s3queue.documents.flow import flow_key
from s3queue.documents.message import MEMBER
from s3queue.encoding import PUT_ID
from s3queue.flow.flows import Flow
from s3queue.protocol.flow_progress import put_node
from s3queue.queue import Queue

from .functions import Container
from .stage import Plot, Stage, script
from .world import QUEUE

#: No message has it: what a producer PUTs anew in the matrix is no flow's.
ELSEWHERE = "messages/m"


def _flow(queue: Queue, *plans: str, steps: str = "k", within: bool = False, **options: Any) -> Flow:
    """Members with these plans; `within`, the last two are a flow of their own."""
    flow = Flow(queue, id="f", **options)
    members = flow
    if within:
        members = Flow(queue, **options)
    for number, plan in enumerate(plans):
        (members if number >= len(plans) - 2 else flow).add(QUEUE, script(f"m{number}", plan))
    if within:
        members.then(QUEUE, script("within", "k"))
        flow.add(members)
    for number, plan in enumerate(steps):
        flow.then(QUEUE, script(f"s{number}", plan))
    return flow


def _path(flow: str, node: int) -> str:
    return f"messages/flow-{flow}-{node:04d}"


def _start(*plans: str, **options: Any) -> Plot:
    def plot(stage: Stage) -> str:
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        stage.act(lambda worker: _flow(worker.queue, *plans, **options).start())
        return ELSEWHERE

    return plot


def _run(subject: str, *plans: str, before: tuple[str, ...] = (), **options: Any) -> Plot:
    """A flow that was started, of which some messages have run: the subject runs one more."""

    def plot(stage: Stage) -> str:
        stage.cast.profile = replace(stage.cast.profile, exact=False)

        def prepare(helper: Container) -> None:
            _flow(helper.queue, *plans, **options).start()
            for path in before:
                helper.processor.run(path)

        stage.prepare(prepare)
        stage.act(lambda worker: worker.processor.run(subject))
        return ELSEWHERE

    return plot


def _cancel(*plans: str, before: tuple[str, ...] = (), meanwhile: str = "", **options: Any) -> Plot:
    def plot(stage: Stage) -> str:
        stage.cast.profile = replace(stage.cast.profile, exact=False)

        def prepare(helper: Container) -> None:
            _flow(helper.queue, *plans, **options).start()
            for path in before:
                helper.processor.run(path)

        stage.prepare(prepare)
        if meanwhile:
            stage.world.spawn(stage.helper.process, stage.helper.processor.run, meanwhile)
        stage.act(lambda worker: Flow(worker.queue, id="f").cancel())
        return ELSEWHERE

    return plot


def _cancel_started(*plans: str, **options: Any) -> Plot:
    """A flow whose first member is stored: another process is about to store the others."""

    def plot(stage: Stage) -> str:
        stage.cast.profile = replace(stage.cast.profile, exact=False)

        def begin(helper: Container) -> None:
            document = _flow(helper.queue, *plans, **options).document()
            helper.queue.store.put(document.marker, b"")
            helper.queue.store.put(flow_key("f"), document.to_bytes(), if_absent=True)
            if not options:
                put_node(helper.queue, document, 0)

        stage.prepare(begin)
        stage.world.spawn(stage.helper.process, lambda: _flow(stage.helper.queue, *plans, **options).start())
        stage.act(lambda worker: Flow(worker.queue, id="f").cancel())
        return ELSEWHERE

    return plot


def _forged(plan: str, node: int, beside: int = 1, **options: Any) -> Plot:
    """Before its time, a stranger has PUT a step: nothing that comes after it comes sooner for that."""

    def plot(stage: Stage) -> str:
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        path = _path("f", node)
        stage.judge.members.forged.add(path)
        stage.prepare(lambda helper: _flow(helper.queue, "fk", steps="kk", **options).start())
        put_id = f"{MEMBER}f/{node:04d}/{beside}/"
        stage.world.store.put(f"{QUEUE}/{path}", script("stray", plan), metadata={PUT_ID: put_id})
        stage.act(lambda worker: worker.processor.run(path))
        return ELSEWHERE

    return plot


MEMBERS: dict[str, Plot] = {
    "start a flow": _start("k", "k"),
    "start a flow within a flow": _start("k", "k", "k", within=True),
    "complete the last member of a flow": _run(_path("f", 1), "k", "k", before=(_path("f", 0),)),
    "complete the only member, of a chain": _run(_path("f", 0), "k", steps="kk"),
    "complete the last step of a flow": _run(_path("f", 1), "k", before=(_path("f", 0),)),
    "reject a member of a flow": _run(_path("f", 0), "r", "k"),
    "reject a member of a flow that continues": _run(
        _path("f", 1), "k", "r", before=(_path("f", 0),), on_dead="continue"
    ),
    "complete the last step within a flow": _run(
        _path("f.0000", 2), "k", "k", before=(_path("f.0000", 0), _path("f.0000", 1)), within=True
    ),
    "cancel a flow": _cancel("k", "k"),
    "cancel a flow while its last member completes": _cancel(
        "k", "k", before=(_path("f", 0),), meanwhile=_path("f", 1)
    ),
    "cancel a flow whose step waits": _cancel("k", steps="kk", before=(_path("f", 0),)),
    "cancel a flow that is being started": _cancel_started("k", "k", "k", "k"),
    "cancel a flow within a flow that is being started": _cancel_started("k", "k", within=True),
    "complete a step that a stranger forged": _forged("k", 1),
    "complete a step that a stranger forged as one of many": _forged("k", 2, beside=0),
    "reject a step that a stranger forged": _forged("r", 1),
}
