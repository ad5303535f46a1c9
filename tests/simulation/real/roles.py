"""What the processes of a run do: a pull worker, an execution environment of a function, a client, an operator.

Each is a process of its own, forked from one that has imported everything, and ends when it is killed or told to.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import queues
from handlers import sweeper, worker
from s3queue import DeadLetters, Queue, QueueError, Worker
from s3queue.documents.dead_lines import messages_of
from simulation.real import work
from simulation.real.history import call, tell
from simulation.real.place import HEAVY, PULLED, QUEUES, SERVED, SWEEPER, WORKERS, Place

LINES_PER_BATCH = 6
#: Longer than a pull worker's `handler_timeout`; longer than a function lives; a run has no limit per message.
HANGS = {PULLED: 8.0, SERVED: 60.0, HEAVY: 2.0}
TYPICAL_SECONDS = 0.15
#: How often a thread of a pull worker meets an error that nobody foresaw, of the times that it has something to do.
BREAKS = 0.03
#: What the names begin with that are PUT more than once: which PUT was cancelled, nobody could tell.
AGAIN = ("again-", "dedup-")


def pull(place: Place) -> None:
    """A pull worker, as the library ships it, until SIGTERM."""
    place.enter("pull", PULLED)
    queue = place.queue(PULLED)
    tell("serves", worker=queue.worker_id, queue=PULLED)
    worker = Worker(queue, queues.load_one(PULLED), poll_interval=0.3)
    break_threads(worker, random.Random())
    worker.run()


def break_threads(worker: Worker, chance: random.Random) -> None:
    """Now and then, a thread of the worker meets an error that nobody foresaw: none of them may end by it."""
    for role, holder, name in (
        ("heartbeat", worker._heartbeat, "beat"),
        ("sweeping", worker._turn, "sweep"),
        ("supervising", worker, "_follow_settings"),
    ):
        setattr(holder, name, _breaking(role, getattr(holder, name), chance))


def _breaking(role: str, function: Callable[..., Any], chance: random.Random) -> Callable[..., Any]:
    broken: list[bool] = []

    def called(*arguments: Any, **options: Any) -> Any:
        if broken:
            broken.clear()
            tell("thread went on", thread=role)
        if chance.random() < BREAKS:
            broken.append(True)
            tell("thread broke", thread=role)
            raise ZeroDivisionError("an error that nobody foresaw")
        return function(*arguments, **options)

    return called


class Invocation:
    """Lambda's context: what is left of the time."""

    aws_request_id = "invocation"

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        return int(max(0.0, self._until - time.monotonic()) * 1000)


def serve(place: Place, function: str, connection: Connection) -> None:
    """An execution environment: one invocation after the other. Frozen between them, and killed, from outside."""
    queue = next((name for name, one in WORKERS.items() if one == function), "")
    place.enter(function, queue)
    handler, kept = (sweeper.handle, sweeper.runtime) if function == SWEEPER else (worker.handle, worker.runtime)
    # Lambda's init phase, which does not count.
    kept()
    connection.send("ready")
    while True:
        event, seconds = connection.recv()
        answer: Any
        try:
            answer = handler(event, Invocation(seconds))
        except Exception as error:
            answer = repr(error)
        connection.send(answer)


def produce(place: Place, seed: float, rate: float) -> None:
    """A client that enqueues `rate` messages a second, of every sort, into every queue, until SIGTERM."""
    place.enter("client")
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    chance = random.Random(seed)
    connected = {name: place.queue(name) for name in QUEUES}
    count = 0
    while not stopping.is_set():
        queue = connected[chance.choices(QUEUES, weights=(6, 5, 2))[0]]
        count += _enqueue(queue, f"{os.getpid()}-{count}", chance)
        stopping.wait(chance.expovariate(rate))


def _enqueue(queue: Queue, id: str, chance: random.Random) -> int:
    """One call; how many messages it was for."""
    make = partial(work.body, chance=chance, typical=TYPICAL_SECONDS, hangs=HANGS[queue.name])
    kind = chance.random()
    if kind < 0.1 and queue.name != HEAVY:
        bodies = [make(f"{id}.{line}") for line in range(1, LINES_PER_BATCH + 1)]
        call(
            "enqueue_many", lambda: queue.enqueue_many(bodies, per_object=len(bodies)), queue=queue.name, bodies=bodies
        )
        return len(bodies)
    body = make(id)
    options: dict[str, Any] = {}
    if kind < 0.2:
        options = {"delay": chance.uniform(0.5, 2.5)}
    elif kind < 0.3:
        options = {"priority": 9}
    elif kind < 0.4:
        options = {"dedup_id": id}
    elif kind < 0.5:
        # The same few names again and again, by this process alone: each PUT replaces what was not finished yet.
        options = {"name": f"again-{os.getpid()}-{chance.randrange(2)}.json"}
    told = {"queue": queue.name, "bodies": [body], "name": options.get("name"), "delay": options.get("delay")}
    call("enqueue", lambda: queue.enqueue(body, **options), **told)
    if "dedup_id" in options and chance.random() < 0.5:
        call("enqueue", lambda: queue.enqueue(body, **options), **told, again=True)
    return 1


def operate(place: Place, seed: float) -> None:
    """An operator: replays dead letters, cancels messages, changes settings, pauses and resumes, until SIGTERM."""
    place.enter("operator")
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    chance = random.Random(seed)
    connected = {name: place.queue(name) for name in QUEUES}
    while not stopping.is_set():
        queue = connected[chance.choice(QUEUES)]
        kind = chance.random()
        if kind < 0.35:
            _replay(queue, chance)
        elif kind < 0.5:
            _cancel(queue, chance)
        elif kind < 0.6:
            _configure(queue, paused=True)
            stopping.wait(chance.uniform(0.3, 2.0))
            _configure(queue, paused=None)
        elif kind < 0.8:
            _configure(queue, concurrency=chance.choice([1, 2, 4, None]))
        elif queue.name == PULLED:
            # Lowered and raised while messages are held.
            _configure(queue, visibility_timeout=chance.choice([2, 3, 5, None]))
        stopping.wait(chance.uniform(0.5, 1.5))


def _replay(queue: Queue, chance: random.Random) -> None:
    letters = DeadLetters(queue)
    found = []
    with suppress(QueueError):
        found = [letter.path for letter in letters.list()]
    for path in chance.sample(found, min(2, len(found))):
        # Of a batch's dead lines, perhaps only those that died of one error.
        error_type = chance.choice(["Reject", "ValueError", None, None])
        replay = partial(letters.replay, path, error_type=error_type)
        call("replay", replay, queue=queue.name, path=path, error_type=error_type)


def _cancel(queue: Queue, chance: random.Random) -> None:
    """Messages, whatever they are at. The history is told which ones are in an object: a record does not say it."""
    found: list[str] = []
    with suppress(QueueError):
        for kind in ("messages", "delayed"):
            found += [entry.key for entry in queue.store.list(queue.keys.prefix(kind)).objects]
    paths = [path for path in map(queue.keys.path, found) if path and not path.rpartition("/")[2].startswith(AGAIN)]
    for path in chance.sample(paths, min(2, len(paths))):
        with suppress(QueueError):
            if stored := queue.store.open(queue.keys.message(path)):
                bodies = [body for _, body in messages_of(path, stored.stream) if isinstance(body, bytes)]
                ids = [json.loads(body)["id"] for body in bodies]
                call("cancel", partial(_cancelled, queue, path), queue=queue.name, path=path, ids=ids)


def _cancelled(queue: Queue, path: str) -> dict[str, Any]:
    record = queue.cancel(path)
    generation = [record.generation.etag, record.generation.put_at.isoformat()]
    return {"outcome": record.outcome, "is_withdrawn": record.is_withdrawn, "generation": generation}


def _configure(queue: Queue, **changes: Any) -> None:
    call("configure", lambda: queue.configure(**changes), queue=queue.name, changes=changes)
