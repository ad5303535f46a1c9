"""Operations of the crash matrix on partitions: one lease for many messages.  [P9]"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from s3queue.errors import Unavailable, Unreadable
from s3queue.flow import partition_window

from .flow_operations import purge
from .functions import Container
from .machines import Process
from .stage import SETTINGS, Plot, Stage, script
from .world import QUEUE

GROUP = "@a"
LEASE = f"{QUEUE}/leases/{GROUP}"


def _put(stage: Stage, *bodies: bytes, partition: str = GROUP) -> str:
    """The messages of a partition; returns the path of the first."""
    paths = [stage.put(f"{partition}/{number}", body) for number, body in enumerate(bodies, 1)]
    return paths[0]


def _run(*plans: str, partition: str = GROUP, keep_payload: bool = False, **more: Any) -> Plot:
    def plot(stage: Stage) -> str:
        path = _put(stage, *(script(f"m{n}", plan, **more) for n, plan in enumerate(plans, 1)), partition=partition)

        def run(worker: Container) -> None:
            worker.queue.settings = replace(worker.queue.settings, keep_payload=keep_payload)
            worker.processor.run(path)

        stage.act(run)
        return path

    return plot


def _when(stage: Stage, is_it: Callable[[Process, str, Any], bool], then: Callable[[], object]) -> None:
    """Do something once, right after a request of this kind."""
    performed, done = stage.performed, [False]

    def watched(process: Process, operation: str, key: str, sent_at: float, before: Any, after: Any) -> None:
        performed(process, operation, key, sent_at, before, after)
        if not done[0] and is_it(process, key, after):
            done[0] = True
            then()

    stage.performed = watched


def _take_over(last: str, *plans: str, **more: Any) -> Plot:
    """The last holder died when it had written a key that begins like this; its lease has run out."""

    def plot(stage: Stage) -> str:
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        path = _put(stage, *(script(f"m{n}", plan, **more) for n, plan in enumerate(plans, 1)))
        helper = stage.helper.process
        _when(
            stage,
            lambda process, key, after: process is helper and key.startswith(last),
            lambda: stage.world.at(stage.world.now, lambda: stage.world.kill(helper)),
        )
        stage.prepare(lambda one: one.processor.run(path))
        stage.act(lambda worker: worker.processor.run(path))
        return path

    return plot


def _message_comes(stage: Stage) -> str:
    """A message comes in the instant in which the lease is given up: its own event has found it held."""
    path = _put(stage, script("m1", "k"))
    _when(
        stage,
        lambda process, key, after: key == LEASE and after is None,
        lambda: stage.world.at(stage.world.now, lambda: stage.put(f"{GROUP}/2", script("m2", "k"))),
    )

    def run(worker: Container) -> None:
        worker.processor.run(path)
        stage.world.sleep(0.1)
        if stage.cast.profile.exact and f"{QUEUE}/messages/{GROUP}/2" in stage.world.objects:
            stage.judge.broken("P6", "a message that came while the lease was given up is left to the sweeper")

    stage.act(run)
    return path


def _re_put(body: bytes) -> Plot:
    """The first name is PUT anew while the second message runs."""

    def plot(stage: Stage) -> str:
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        path = _put(stage, script("m1", "k"), script("m2", "k", takes=1.5))
        stage.world.at(stage.world.now + 1.2, lambda: stage.put(f"{GROUP}/1", body))
        stage.act(lambda worker: worker.processor.run(path))
        return path

    return plot


def _re_put_after_deletion(stage: Stage) -> str:
    """Equal bytes come after the last holder had deleted the message, and before its lease was given up: it died."""
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    path, helper = _put(stage, script("m1", "k"), script("m2", "k")), stage.helper.process
    key = f"{QUEUE}/{path}"
    _when(
        stage,
        lambda process, written, after: process is helper and written == key and after is None,
        lambda: stage.world.at(stage.world.now, lambda: stage.world.kill(helper)),
    )
    stage.prepare(lambda one: one.processor.run(path))
    stage.put(f"{GROUP}/1", script("m1", "k"))
    stage.act(lambda worker: worker.processor.run(path))
    return path


def _unreadable(stage: Stage) -> str:
    """Nobody can read the first message: it dies, stays where it is, and does not hold its group up."""
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    path = _put(stage, script("m1", "k"), script("m2", "k"))
    refused = stage.world.store.refused
    refused[f"{QUEUE}/{path}"] = Unreadable

    def mend() -> None:
        refused.clear()
        stage.put(f"{GROUP}/1", script("n1", "k"))

    stage.world.at(stage.world.now + 70.0, mend)
    stage.act(lambda worker: worker.processor.run(path))
    return path


def _cancel(plan: str, before: int = 0) -> Plot:
    """Cancel the first message of a group; `before` attempts of it have failed already."""

    def plot(stage: Stage) -> str:
        # It runs as often as nobody has cancelled it.
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        path = _put(stage, script("m1", plan))
        for _ in range(before):
            stage.prepare(lambda helper: helper.processor.run(path))

        stage.act(lambda worker: worker.queue.cancel(path))
        return path

    return plot


def replay_surely(path: str) -> Callable[[Container], None]:
    """Replay its letter, and once more if there is no answer."""

    def replay(worker: Container) -> None:
        letters = worker.queue.letters()
        try:
            letters.replay(path)
        except Unavailable:
            letters.replay(path)

    return replay


def _replay(stage: Stage) -> str:
    """The first message of a group is dead; an operator who repeats what has no answer replays it."""
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    path = _put(stage, script("m1", "r", heals="k"))
    stage.prepare(lambda helper: helper.processor.run(path))

    stage.act(replay_surely(path))
    return path


def _define(stage: Stage, **changes: Any) -> None:
    settings = replace(SETTINGS, partitions=1, **changes)
    stage.cast.define(settings)
    for container in (stage.worker, stage.helper):
        container.queue.settings = container.queue.defined = settings
        container.processor = stage.cast.processor(container.queue)


def _vanish(**changes: Any) -> Plot:
    """Someone deletes a message that waits for its next attempt; whoever finds that has another one to take."""

    def plot(stage: Stage) -> str:
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        _define(stage, **changes)
        path = _put(stage, script("m1", "fk"), partition="@=0")
        stage.prepare(lambda helper: helper.processor.run(path))
        stage.prepare(lambda helper: helper.queue.remove(path))
        other = stage.put("@=0/2", script("m2", "k"))
        stage.act(lambda worker: worker.processor.run(other))
        return other

    return plot


def _fill(*, is_removed: bool) -> Plot:
    """As many failed messages wait as may, behind more others than a look lists; or they were deleted by hand."""

    def plot(stage: Stage) -> str:
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        paths = [stage.put(f"@=0/z{number}", script(f"z{number}", "fk")) for number in (1, 2)]
        stage.prepare(lambda helper: helper.processor.run(paths[0]))
        stage.patches.enter_context(patch.multiple(partition_window, MOST_WAITING=2, PAGE=1, PAGES=1))
        for number in range(1, 4):
            other = stage.put(f"@=0/{number}", script(f"m{number}", "k"))
        for path in paths if is_removed else ():
            stage.prepare(lambda helper, path=path: helper.queue.remove(path))  # type: ignore[misc]
        stage.act(lambda worker: worker.processor.run(other))
        return other

    return plot


def _collect(*plans: str) -> Plot:
    """One call of a handler of lists for all of them."""

    def plot(stage: Stage) -> str:
        # Several are taken by one call, and one of them may be the first of another.
        stage.cast.profile = replace(stage.cast.profile, exact=False)
        _define(stage, collect=3, within=timedelta())
        path = _put(stage, *(script(f"m{n}", plan) for n, plan in enumerate(plans, 1)), partition="@=0")
        stage.act(lambda worker: worker.processor.run(path))
        return path

    return plot


PARTITIONED: dict[str, Plot] = {
    "group, complete": _run("k", "k"),
    "group, complete in two commits": _run("k", "k", "k", "k"),
    "group, one fails": _run("k", "fk", "k"),
    "group, one dies": _run("k", "r", "k"),
    "group, one dies of its last attempt": _run("f", "k"),
    "group, and send": _run("k", "k", sends=1),
    "group, and send much": _run("k", "k", sends=3),
    "group, extend": _run("k", "k", extends=True),
    "group, postpone": _run("k", "k", postpones=1),
    "group, keep the payload": _run("k", "k", keep_payload=True),
    "shared partition, one fails": _run("k", "fk", "r", "k", partition="@=0"),
    "group, take over what was taken": _take_over(LEASE, "k", "fk"),
    "group, take over the only one": _take_over(LEASE, "fk"),
    "group, take over what was committed": _take_over(f"{QUEUE}/records/{GROUP}/", "k", "r", sends=1),
    "group, take over what was sent": _take_over(f"{QUEUE}/messages/sent-", "k", "k", sends=1),
    "group, a message comes while the lease is given up": _message_comes,
    "group, re-PUT while held": _re_put(script("n1", "k")),
    "group, equal re-PUT while held": _re_put(script("m1", "k")),
    "group, equal re-PUT after the deletion": _re_put_after_deletion,
    "group, one that cannot be read": _unreadable,
    "group, cancel a pending message": _cancel("k"),
    "group, cancel a waiting message": _cancel("fk", before=1),
    "group, purge a message that waits": purge(f"{GROUP}/1", script("m1", "f")),
    "group, replay a dead letter": _replay,
    "shared partition, collect": _collect("k", "fk"),
    "shared partition, full behind others": _fill(is_removed=False),
    "shared partition, full of what was deleted by hand": _fill(is_removed=True),
    "shared partition, one that waits is deleted by hand": _vanish(),
    "shared partition, one that waits is deleted by hand while others are gathered": _vanish(
        collect=3, within=timedelta(seconds=2)
    ),
}
