"""What is looked at as it goes when nothing else goes wrong: plots that stage their own trouble, or none."""

from __future__ import annotations

import contextlib

from s3queue.errors import Conflict

from .actors import PullWorker
from .functions import Container, Notification
from .stage import Plot, Stage, batch, script
from .world import QUEUE


def _oldest_first(stage: Stage) -> str:
    """A consumer without a competitor takes the oldest first, whatever its name, and the urgent before them."""
    wanted = []
    for name in ("c", "a", "b"):
        stage.world.run(stage.world.now + 2.0)
        wanted.append(stage.put(name, script(name, "k")))
    wanted.insert(0, stage.put("p200/d", script("d", "k")))

    def take(worker: Container) -> None:
        for path in wanted:
            for claim in worker.queue.claim_next():
                if claim.path != path:
                    stage.judge.broken("unexpected", f"{claim.path} was claimed before {path}")
                worker.processor.process(claim)
                stage.judge.let_go(worker.process)

    stage.act(take)
    return wanted[0]


def _take_what_ran_out(stage: Stage) -> str:
    """No sweeper is there; whoever asks for the next message finds the one whose worker died."""
    path = stage.put("m", script("m", "k"))
    stage.prepare(lambda helper: helper.queue.claim(path))
    stage.judge.let_go(stage.helper.process)
    stage.world.run(stage.world.now + 8.0)

    def take(worker: Container) -> None:
        claims = worker.queue.claim_next()
        if not claims:
            stage.judge.broken("P6", f"{path} ran out, and claim_next did not find it")
        for claim in claims:
            worker.processor.process(claim)

    stage.act(take)
    return path


def _delete_a_replay(stage: Stage) -> str:
    """Someone deletes a message that died, was replayed, and waits for its next attempt: a record has to say so."""
    path = stage.put("m", script("m", "r", heals="f"))
    stage.prepare(lambda helper: helper.processor.run(path))
    stage.prepare(lambda helper: helper.queue.letters().replay(path))
    stage.prepare(lambda helper: helper.processor.run(path))
    stage.act(lambda worker: worker.queue.remove(path))
    return path


def _replay_in_the_middle(stage: Stage) -> str:
    """A letter is replayed although its burial was not finished, and whoever runs its lines dies, too."""
    dying, healing = script("dying", "r"), script("healing", "r", heals="k")
    path, lines = stage.put("b.ndjson", b"%b\n%b\n" % (dying, healing)), "messages/b.ndjson.lines"
    stage.kill_after(stage.helper.process, f"{QUEUE}/dead/{lines}")
    stage.prepare(lambda helper: helper.processor.run(path))
    stage.kill_after(stage.worker.process, f"{QUEUE}/records/{lines}")

    def replay(worker: Container) -> None:
        for _ in range(10):
            with contextlib.suppress(Conflict):
                worker.processor.run(worker.queue.letters().replay(lines))
            stage.world.sleep(2.0)

    stage.act(replay)
    return path


def _die_beside_a_replay(stage: Stage) -> str:
    """A batch dies anew while the lines of its first death, which were replayed, die again: two letters, one key."""
    path, lines = stage.put("b.ndjson", batch("r", "r")), "messages/b.ndjson.lines"
    stage.prepare(lambda helper: helper.processor.run(path))
    stage.prepare(lambda helper: helper.queue.letters().replay(lines))
    # A little faster: its record needs two requests more, and both look for the letter at the same time.
    stage.put("b.ndjson", b"".join(script(f"other{number}", "r", takes=0.09) + b"\n" for number in (1, 2)))
    stage.world.spawn(stage.helper.process, lambda: stage.helper.processor.run(lines))
    stage.act(lambda worker: worker.processor.run(path))
    return path


def _pause_in_the_middle(stage: Stage) -> str:
    """The queue is paused while a handler takes long: what waits for its own retry is not claimed after that."""
    stage.prepare(lambda helper: helper.queue.configure(visibility_timeout=60))
    path, long = stage.put("a", script("a", "fk")), stage.put("b", script("b", "k", takes=20.0))

    def pause() -> None:
        stage.helper.queue.configure(paused=True)
        stage.judge.history.paused_at = stage.world.now
        stage.world.sleep(30.0)
        stage.judge.history.paused_at = None
        stage.helper.queue.configure(paused=None)

    stage.act(lambda worker: worker.invoke(Notification((path, long), stage.world.now, is_dispatch=True)))
    stage.world.at(stage.world.now + 2.0, lambda: stage.world.spawn(stage.helper.process, pause))
    return path


def _share_an_id(stage: Stage) -> str:
    """Two pull workers were given one id, and their handlers outlast their leases: what each holds is its own."""
    paths = [stage.put(name, script(name, "k", takes=9.0)) for name in "abcd"]
    until = stage.world.now + 14.0
    PullWorker(stage.cast, until, after=0.3, twin=PullWorker(stage.cast, until))
    stage.act(lambda _: stage.world.sleep(14.0))
    return paths[0]


UNDISTURBED: dict[str, Plot] = {
    "claim the oldest first": _oldest_first,
    "claim next what ran out": _take_what_ran_out,
    "delete a replayed message by hand": _delete_a_replay,
    "die beside one's replayed lines": _die_beside_a_replay,
    "replay in the middle of a burial": _replay_in_the_middle,
    "pause in the middle": _pause_in_the_middle,
    "share the id of another worker": _share_an_id,
}
