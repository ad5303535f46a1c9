"""Proof, part 4: the shipped parts as real processes, over real HTTP that fails, on a real S3 server; nothing is lost.

A round: pull workers, functions, Spark runs, clients and an operator, tormented for a while; then no faults any more,
until everything is quiet; then the judge.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from s3queue import Queue, connect
from support.fault_proxy import FAULTS, fault_proxy
from support.s3_servers import fresh_bucket, s3_client, seaweedfs_server

from . import history
from .bucket import left_behind
from .place import PULLED, QUEUES, SERVED, Place, add_queues
from .platform import Platform
from .torment import PATHS, USUAL_RATES, Processes, Torment, tormenting
from .verdict import Verdict, judge

DRAINED_WITHIN_SECONDS = 150.0
MESSAGES_PER_SECOND = 5.0
#: Where redelivery is measured, and how long it is waited for.
CALM = (PULLED, SERVED)
CALM_SECONDS = 30.0


@dataclass
class Round:
    """What a round did, and what the judge says."""

    store: str
    seed: int
    verdict: Verdict = field(default_factory=Verdict)
    #: Faults, by kind, and torments.
    faults: Counter[str] = field(default_factory=Counter)
    torments: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    seconds: float = 0.0


def run(
    seconds: float,
    *,
    store: str,
    seed: int = 20261116,
    rate: float = MESSAGES_PER_SECOND,
    calm_kills: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> Round:
    """Torment for `seconds`, drain, and judge. With `calm_kills`, measure redelivery when nothing else goes wrong.

    If a promise broke, histories and logs stay, and the verdict names their folder.
    """
    done = Round(store, seed)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="processes-"))
    try:
        _run(done, folder, seconds, rate, calm_kills, progress)
    except Exception as error:
        done.verdict.broken("unexpected", [f"the round broke off: {error!r}"])
    done.seconds = time.monotonic() - began
    if done.verdict.details:
        done.verdict.details.append(f"seed {seed}, {store}; histories and logs: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return done


def _run(done: Round, folder: Path, seconds: float, rate: float, calm_kills: int, progress: Callable[[], None]) -> None:
    chance = random.Random(done.seed)
    platform = Platform(chance.random())
    with (
        seaweedfs_server() as endpoint,
        fault_proxy(endpoint, seed=chance.random(), on_created=platform.created) as proxy,
        platform.running(folder, os.pathsep.join(PATHS)),
    ):
        client = s3_client(endpoint)
        bucket = fresh_bucket(client)
        place = Place(
            endpoint=proxy.endpoint,
            bucket=bucket,
            store=done.store,
            folder=str(folder),
            lambda_endpoint=platform.service.url,
            emr_endpoint=platform.emr.endpoint,
        )
        processes = Processes(place)
        history.begin(folder, "torment")
        faults = USUAL_RATES[done.seed % len(USUAL_RATES)]
        with tormenting(Torment(processes, platform, proxy, chance, rate, faults)) as torment:
            platform.open(place, processes.environment)
            torment.begin()
            torment.run(seconds, progress)
            torment.end_clients()
            platform.is_faulty = False
            platform.emr.throttled = platform.emr.lost_answers = 0
            queues = _as_operator(bucket, client)
            torment.keep_up(lambda: _is_quiet(queues, platform), DRAINED_WITHIN_SECONDS, progress)
            calm = {name: [_kill_calmly(queues[name], torment, folder) for _ in range(calm_kills)] for name in CALM}
            torment.keep_up(lambda: _is_quiet(queues, platform), DRAINED_WITHIN_SECONDS, progress)
            torment.end_workers()
            events = history.read(folder)
        done.faults = Counter({name: proxy.injected[name] for name in FAULTS})
        done.torments = torment.counts + platform.counts
        done.requests = proxy.requests
        done.verdict = judge(events, queues)
        for name, seconds_each in calm.items():
            if found := sorted(second for second in seconds_each if second is not None):
                done.verdict.times[f"{name} redelivered when calm"] = (found[len(found) // 2], found[-1])


def _as_operator(bucket: str, client: object) -> dict[str, Queue]:
    """The queues, seen past the proxy; whatever an operator changed is undone."""
    import queues as definitions

    with patch.object(definitions, "__path__", [*definitions.__path__]):
        add_queues()
        settings = {name: definitions.load_one(name).settings for name in QUEUES}
    found = {name: connect(f"s3://{bucket}/{name}", settings=settings[name], client=client) for name in QUEUES}
    for queue in found.values():
        queue.configure(paused=None, concurrency=None, visibility_timeout=None)
    return found


def _is_quiet(queues: dict[str, Queue], platform: Platform) -> bool:
    """Whether nothing is pending or at work. What is left if that never happens is the judge's to find."""
    return not platform.waiting() and not platform.drivers() and not any(map(left_behind, queues.values()))


def _kill_calmly(queue: Queue, torment: Torment, folder: Path) -> float | None:
    """Kill the process that runs a message, with no other fault: seconds until the message is started again."""
    id = f"calm-{queue.name}-{time.monotonic()}"
    body: history.Json = {"id": id, "fate": "fine", "failures": 0, "seconds": 2.0}
    history.call("enqueue", lambda: queue.enqueue(body), queue=queue.name, bodies=[body])

    def starts(at_least: int) -> list[history.Json]:
        found: list[history.Json] = []

        def is_enough() -> bool:
            found[:] = [one for one in history.read(folder) if one["event"] == "start" and one["id"] == id]
            return len(found) >= at_least

        torment.keep_up(is_enough, CALM_SECONDS, lambda: None)
        return found

    first = starts(1)
    if not first or not torment.kill("killed calmly", first[0]["pid"]):
        return None
    killed_at = time.monotonic()
    both = starts(2)
    return float(both[1]["at"]) - killed_at if len(both) > 1 else None
