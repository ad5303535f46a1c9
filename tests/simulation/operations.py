"""The operations that the crash matrix tries, each on a stage of its own, and the states that lead up to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

from s3queue.errors import Unreadable
from s3queue.paths import format_due
from s3queue.protocol import backlog
from s3queue.sweeper.sweeper import Sweeper

from .actors import PullWorker
from .edited_group_operations import EDITED_GROUPS
from .edited_operations import EDITED, EDITED_BESIDE
from .fired import FIRED
from .flow_operations import FLOW_OPERATIONS
from .functions import Container
from .kept_operations import KEPT
from .limited_operations import LIMITED
from .line_operations import CHOSEN
from .member_operations import MEMBERS
from .partition_operations import PARTITIONED, replay_surely
from .released_operations import RELEASED
from .stage import SETTINGS, Plot, Stage, batch, script
from .started_operations import STARTED
from .unread_operations import UNREAD
from .world import EPOCH, QUEUE


def _process(worker: Container, *, path: str, read_first: bool) -> None:
    worker.processor.run(path, read_first=read_first)


def _run(name: str, body: bytes, before: int = 0) -> Plot:
    """One invocation for one message; `before` attempts have failed already."""

    def plot(stage: Stage) -> str:
        path = stage.put(name, body)
        for number in range(before):
            stage.prepare(partial(_process, path=path, read_first=number > 0))
        stage.act(lambda worker: worker.processor.run(path, read_first=before > 0))
        return path

    return plot


def _single(plan: str, *, before: int = 0, **more: Any) -> Plot:
    return _run("m", script("m", plan, **more), before)


def _batch(*plans: str, before: int = 0, **more: Any) -> Plot:
    return _run("b.ndjson", batch(*plans, **more), before)


def _release(before: int) -> Plot:
    def plot(stage: Stage) -> str:
        path = stage.put("m", script("m", "fk"))

        def give_back(worker: Container) -> None:
            if claim := worker.queue.claim(path, read_first=True):
                worker.queue.release(claim)

        if before:
            stage.prepare(lambda helper: helper.processor.run(path))
        stage.act(give_back)
        return path

    return plot


def _interrupted_batch(before: int) -> Plot:
    """A batch whose invocation ran out of time after its first line."""

    def plot(stage: Stage) -> str:
        path = stage.put("b.ndjson", batch("fk", "k", "r"))
        if before:
            stage.prepare(lambda helper: helper.processor.run(path))

        def interrupted(worker: Container) -> None:
            worker.out_of_time_at(stage.world.now)
            worker.processor.run(path, read_first=before > 0)

        stage.act(interrupted)
        return path

    return plot


def _stale_event(stage: Stage) -> str:
    path = stage.put("m", script("m", "k"))
    stage.prepare(lambda helper: helper.processor.run(path))
    stage.act(lambda worker: worker.processor.run(path))
    return path


def _re_put(plan: str, then: str, **more: Any) -> Plot:
    """The name is PUT anew while the handler runs: both run, the second with all its attempts."""

    def plot(stage: Stage) -> str:
        path = stage.put("m", script("m", plan, takes=1.0, **more))
        etag = stage.world.objects[f"{QUEUE}/{path}"].etag
        stage.world.at(stage.world.now + 0.5, lambda: stage.put("m", script("n", then)))
        # The event says which PUT it is about.
        stage.act(lambda worker: worker.processor.run(path, etag=etag))
        return path

    return plot


def _re_put_waiting(stage: Stage) -> str:
    """The name is PUT anew while the first waits for its second attempt."""
    path = stage.put("m", script("m", "f"))
    stage.prepare(lambda helper: helper.processor.run(path))
    stage.put("m", script("n", "f"))
    stage.act(lambda worker: worker.processor.run(path, read_first=True))
    return path


def _re_put_unknown(stage: Stage) -> str:
    """The name is PUT anew while the first waits, and the record, which is looked for then, is refused once."""
    path = stage.put("m", script("m", "f"))
    stage.prepare(lambda helper: helper.processor.run(path))
    stage.put("m", script("n", "fk"))
    refused = [f"{QUEUE}/records/{path}"]

    def denies(operation: str, key: str) -> bool:
        is_refused = operation == "get" and key in refused
        if is_refused:
            refused.clear()
        return is_refused

    stage.world.store.denies = denies
    stage.act(lambda worker: worker.processor.run(path, read_first=True))
    return path


def _re_put_unreadable(act: Callable[[Container], Any]) -> Plot:
    """The name is PUT anew over a message that nobody could read, died, and had to stay where it was."""

    def plot(stage: Stage) -> str:
        path = stage.put("m", script("m", "k"))
        key = f"{QUEUE}/{path}"
        stage.world.store.refused[key] = Unreadable
        for number in range(SETTINGS.max_attempts):
            stage.prepare(partial(_process, path=path, read_first=number > 0))
        del stage.world.store.refused[key]
        stage.put("m", script("n", "k"))
        stage.act(act)
        return path

    return plot


def _claim_next_behind_others(stage: Stage) -> str:
    """A delayed message that waits for its retry, and the reminder of a finished one, are older than what may run."""
    due = format_due(EPOCH)
    waits = f"delayed/{due}/waits"
    stage.helper.queue.settings = replace(SETTINGS, retry_base=timedelta(seconds=30), retry_cap=timedelta(seconds=30))
    stage.world.store.put(f"{QUEUE}/{waits}", script("waits", "fk"))
    stage.world.store.put(f"{QUEUE}/retries/{due}/messages/finished", b"")
    stage.prepare(partial(_process, path=waits, read_first=True))
    path = stage.put("m", script("m", "k"))

    def claim_next(worker: Container) -> None:
        # One lost claim ends a round here, so that one message can hide the others.
        with patch.object(backlog, "MISSES", 1):
            claims = worker.queue.claim_next()
        if stage.cast.profile.exact and [claim.path for claim in claims] != [path]:
            stage.judge.broken("P6", f"{path} starves behind messages that wait, and reminders of what is finished")
        for claim in claims:
            stage.hold(worker.process, claim)
            worker.processor.process(claim)

    stage.act(claim_next)
    return path


def _replay(name: str, body: bytes, letter: str) -> Plot:
    def plot(stage: Stage) -> str:
        path = stage.put(name, body)
        stage.prepare(lambda helper: helper.processor.run(path))
        stage.act(lambda worker: worker.queue.letters().replay(f"messages/{letter}"))
        return path

    return plot


def _replay_surely(stage: Stage) -> str:
    """An operator who repeats a replay that has no answer."""
    path = stage.put("m", script("m", "r", heals="k"))
    stage.prepare(lambda helper: helper.processor.run(path))

    stage.act(replay_surely(path))
    return path


def _replay_twins(stage: Stage) -> str:
    """The same bytes died twice under one name; both letters are replayed, the second once the first has completed."""
    # They die without having run.
    stage.cast.profile = replace(stage.cast.profile, exact=False)
    path = "messages/m"

    def die(helper: Container) -> None:
        if claim := helper.queue.claim(path, read_first=True):
            helper.queue.fail(claim, "as scripted", dead=True)

    def replay(worker: Container) -> None:
        dead = worker.queue.keys.prefix("dead")
        for letter in worker.queue.store.list(dead).objects:
            worker.queue.letters().replay(letter.key.removeprefix(dead))
            stage.world.sleep(2.0)
            worker.processor.run(path)

    for _ in range(2):
        stage.put("m", script("m", "k"))
        stage.prepare(die)
    stage.act(replay)
    return path


def _enqueue(stage: Stage) -> str:
    stage.act(lambda worker: worker.queue.enqueue(script("m", "k"), name="m"))
    return "messages/m"


def _sweep_past_a_heartbeat(stage: Stage) -> str:
    """A heartbeat keeps one message; its worker takes another one while the sweep goes on."""
    kept, taken = stage.put("a", script("a", "k", takes=60.0)), stage.put("b", script("b", "fk", takes=12.0))
    puller = PullWorker(stage.cast, until=30.0, threads=0)

    def take_twice() -> None:
        puller.work(taken, False)
        stage.world.sleep(9.5)
        puller.work(taken, True)

    stage.world.spawn(puller.process, puller.work, kept, False)
    stage.world.spawn(puller.process, take_twice)
    stage.world.run(21.0)
    stage.act(lambda worker: Sweeper(queue=worker.queue, dispatch=lambda paths: None).sweep())
    return taken


OPERATIONS: dict[str, Plot] = {
    "claim first, complete": _single("k"),
    "claim first, complete what the next attempt fails": _single("kf", takes=1.0),
    "replay a dead letter": _replay("m", script("m", "r"), "m"),
    "replay twins": _replay_twins,
    **EDITED,
    "replay a dead line": _replay("b.ndjson", batch("k", "r"), "b.ndjson.lines"),
    "replay, and again if unknown": _replay_surely,
    "sweep past a heartbeat": _sweep_past_a_heartbeat,
    "re-PUT of what cannot be read": _re_put_unreadable(
        lambda worker: Sweeper(queue=worker.queue, dispatch=lambda paths: None).sweep()
    ),
    "purge, after a re-PUT of what cannot be read": _re_put_unreadable(lambda worker: worker.queue.letters().purge()),
    "claim next behind others": _claim_next_behind_others,
    "claim first, extend, complete": _single("k", extends=True),
    "claim first, fail": _single("fk"),
    "claim first, bury": _single("r"),
    "claim retry, complete": _single("fk", before=1),
    "claim retry, bury": _single("f", before=1),
    "claim a stale event": _stale_event,
    "release a first attempt": _release(0),
    "release a second attempt": _release(1),
    "batch, complete": _batch("k", "k", "k"),
    "batch, a line rejected": _batch("k", "r", "k"),
    "batch, all lines rejected": _batch("r", "r"),
    "batch, a line fails": _batch("k", "fk", "k"),
    "batch retry, complete": _batch("k", "fk", before=1),
    "batch retry, bury": _batch("k", "f", "r", before=1),
    "batch, interrupted": _interrupted_batch(0),
    "re-PUT at work": _re_put("k", "k"),
    "re-PUT at work, the first fails": _re_put("f", "f"),
    "re-PUT while waiting": _re_put_waiting,
    "re-PUT of what waits, whose record cannot be read at once": _re_put_unknown,
    "enqueue": _enqueue,
    "complete, and send": _single("k", sends=1),
    "complete, and send much": _single("k", sends=3),
    "complete, and send what the next attempt sends, too": _single("kk", sends=2, takes=1.0),
    "fail, then complete, and send": _single("fk", before=1, sends=1),
    "batch, and send": _batch("k", "fk", "r", sends=1),
    "batch retry, and send": _batch("k", "fk", "r", before=1, sends=1),
    "re-PUT at work, and send": _re_put("k", "k", sends=1),
    **KEPT,
    **EDITED_BESIDE,
    **FIRED,
    **LIMITED,
    **FLOW_OPERATIONS,
    **MEMBERS,
    **RELEASED,
    **PARTITIONED,
    **STARTED,
    **UNREAD,
    **CHOSEN,
    **EDITED_GROUPS,
}
