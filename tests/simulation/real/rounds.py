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

from s3queue import Queue, connect
from support.fault_proxy import FAULTS, fault_proxy
from support.s3_servers import fresh_bucket, s3_client, seaweedfs_server

from . import history
from .bucket import left_behind
from .place import QUEUES, Place, add_queues
from .platform import Platform
from .torment import PATHS, Processes, Torment, tormenting
from .verdict import Verdict, judge

DRAINED_WITHIN_SECONDS = 150.0
MESSAGES_PER_SECOND = 5.0


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
    progress: Callable[[], None] = lambda: None,
) -> Round:
    """Torment for `seconds`, drain, and judge. If a promise broke, histories and logs stay, and the verdict names their
    folder.
    """
    done = Round(store, seed)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="processes-"))
    try:
        _run(done, folder, seconds, rate, progress)
    except Exception as error:
        done.verdict.broken("unexpected", [f"the round broke off: {error!r}"])
    done.seconds = time.monotonic() - began
    if done.verdict.details:
        done.verdict.details.append(f"seed {seed}, {store}; histories and logs: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return done


def _run(done: Round, folder: Path, seconds: float, rate: float, progress: Callable[[], None]) -> None:
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
        with tormenting(Torment(processes, platform, proxy, chance, rate)) as torment:
            platform.open(place, processes.environment)
            torment.begin()
            torment.run(seconds, progress)
            torment.end_clients()
            platform.is_faulty = False
            platform.emr.throttled = platform.emr.lost_answers = 0
            queues = _as_operator(bucket, client)
            torment.keep_up(lambda: _is_quiet(queues, platform), DRAINED_WITHIN_SECONDS, progress)
            torment.end_workers()
            events = [*history.read(folder), *torment.events]
        done.faults = Counter({name: proxy.injected[name] for name in FAULTS})
        done.torments = torment.counts + platform.counts
        done.requests = proxy.requests
        done.verdict = judge(sorted(events, key=lambda event: float(event["at"])), queues)


def _as_operator(bucket: str, client: object) -> dict[str, Queue]:
    """The queues, seen past the proxy; whatever an operator changed is undone."""
    add_queues()
    import queues as definitions

    found = {}
    for name in QUEUES:
        found[name] = connect(f"s3://{bucket}/{name}", settings=definitions.load_one(name).settings, client=client)
        found[name].configure(paused=None, concurrency=None, visibility_timeout=None)
    return found


def _is_quiet(queues: dict[str, Queue], platform: Platform) -> bool:
    """Whether nothing is pending or at work. What is left if that never happens is the judge's to find."""
    return not platform.waiting() and not platform.drivers() and not any(map(left_behind, queues.values()))
