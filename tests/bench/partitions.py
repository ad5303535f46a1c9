"""Partitions: one lease for many messages, beside a lease for each, and beside the documented S3 queue plugin.

The same pull worker drains the same messages, once with `partitions` and once without, in turns. In a partition an
outcome counts once a hundred of them are committed together, so a run with partitions ends with its last message.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass

from s3queue.costs.prices import MILLION, requests_cost
from support.s3_servers import fresh_bucket, s3_client, seaweedfs_server

from .instruments.delay import proxy
from .instruments.harness import Bench, Part
from .instruments.scene import draining, fill, queue_at
from .peers import s3db
from .plugin import BODY, CONCURRENCIES, COUNTED, COUNTED_SECONDS, DELAYS, PATIENCE, THEIR_MESSAGES, Count, Place

PARTITIONS = 4
#: Times the messages/s of the same worker without partitions; requests a message besides its PUT; dollars a million.
FASTER, REQUESTS, DOLLARS = 3, 1.1, 5.60
#: Against the plugin.
FEWER_REQUESTS, MORE_MESSAGES = 20, 15
#: How long a run lasts about, by what was measured before, and at most.
SECONDS, MOST_SECONDS = 3.0, 20.0
OUR_COUNTED = 3000


def run(bench: Bench) -> None:
    with bench.part("partitions", f"Partitions: a worker with and without them, and {s3db.NAME}") as part:
        missing = s3db.install()
        if missing:
            bench.skip(f"npm could not install {s3db.NAME}: {missing}")
        with seaweedfs_server() as endpoint, ExitStack() as stack:
            bucket = fresh_bucket(s3_client(endpoint))
            proxies = {delay: stack.enter_context(proxy(endpoint, seconds=delay)) for delay in DELAYS}
            here = Place(endpoint, bucket, proxies)
            _requests(bench, part, here, alone=bool(missing))
            _rates(bench, part, here, alone=bool(missing))


# Requests


def _requests(bench: Bench, part: Part, here: Place, *, alone: bool) -> None:
    with bench.console.status("requests"):
        ours, without = _count(here, PARTITIONS), _count(here, 0)
        theirs = None if alone else _count_theirs(here)
    part.raw["requests by kind"] = {"ours": ours.by_kind, "without": without.by_kind}
    bench.pair(
        f"requests to process, at most {REQUESTS}",
        [(ours.each, REQUESTS)],
        "the goal",
        unit="a message",
        better="less",
        goal=1,
    )
    bench.pair(
        "requests to process", [(ours.each, without.each)], "without partitions", unit="a message", better="less"
    )
    if theirs:
        part.raw["requests by kind"]["theirs"] = theirs.by_kind
        bench.pair(
            "requests to process",
            [(ours.each, theirs.each)],
            f"{s3db.NAME}, best",
            unit="a message",
            better="less",
            goal=FEWER_REQUESTS,
        )
    kinds = ours.by_kind
    dollars = MILLION * requests_cost(puts=1 + kinds["put"], lists=kinds["list"], gets=kinds["get"] + kinds["head"])
    bench.pair(
        f"S3's price of a million, at most ${DOLLARS}",
        [(dollars, DOLLARS)],
        "the goal",
        unit="$",
        better="less",
        goal=1,
    )


def _count(here: Place, partitions: int) -> Count:
    counter = here.proxies[0.0]
    queue = queue_at(counter.endpoint, here.bucket, partitions=partitions)
    fill(queue, OUR_COUNTED, {"payload": BODY})
    counter.take()
    with draining(queue, concurrency=10) as wait:
        done = wait(OUR_COUNTED, seconds=60)
        return Count.of(counter.take(), done.messages)


def _count_theirs(here: Place) -> Count:
    counter = here.proxies[0.0]
    with s3db.plugin(counter.port, here.bucket, setting="best") as plugin:
        plugin.enqueue(COUNTED, BODY)
        counter.take()
        done = plugin.process(
            counter.port, COUNTED, concurrency=3, seconds=COUNTED_SECONDS, patience=COUNTED_SECONDS, failures=0
        )
        return Count.of(counter.take(), done.messages)


# Messages a second


@dataclass(frozen=True, slots=True)
class Drained:
    """One run of ours."""

    per_second: float
    #: Of this process, for each message.
    cpu_ms: float


def _rates(bench: Bench, part: Part, here: Place, *, alone: bool) -> None:
    found: dict[tuple[float, int], list[tuple[Drained, Drained, float]]] = {}
    turns = [(delay, concurrency) for delay in DELAYS for concurrency in CONCURRENCIES]
    with bench.console.status("messages/s") as status:
        for repetition in range(bench.repetitions):
            for turn in turns if repetition % 2 else reversed(turns):
                status.update(f"messages/s, {_at(*turn)}: {repetition + 1} of {bench.repetitions}")
                with_, without = (_drain(here, *turn, partitions) for partitions in (PARTITIONS, 0))
                theirs = 0.0 if alone else _drain_theirs(here, *turn)
                found.setdefault(turn, []).append((with_, without, theirs))
    for turn in turns:
        rates = [(ours.per_second, without.per_second) for ours, without, _ in found[turn]]
        bench.pair(f"messages/s, {_at(*turn)}", rates, "without partitions", unit="/s", goal=FASTER)
    for turn in turns:
        cpu = [(ours.cpu_ms, without.cpu_ms) for ours, without, _ in found[turn]]
        bench.pair(f"CPU a message, {_at(*turn)}", cpu, "without partitions", unit="ms", better="less")
    for turn in turns if not alone else ():
        rates = [(ours.per_second, theirs) for ours, _, theirs in found[turn]]
        bench.pair(f"messages/s, {_at(*turn)}", rates, f"{s3db.NAME}, best", unit="/s", goal=MORE_MESSAGES)
    part.raw["partitions"] = PARTITIONS


def _drain(here: Place, delay: float, concurrency: int, partitions: int) -> Drained:
    """Every message until its outcome counts."""
    # Round trips of one message, and what this machine does at most.
    trips, most = (1.2, 700) if partitions else (3, 350)
    messages = int(SECONDS * min(most, concurrency / (trips * delay) if delay else most)) + concurrency
    queue = queue_at(here.endpoint, here.bucket, partitions=partitions)
    fill(queue, messages, {"payload": BODY})
    if delay:
        queue = queue_at(here.proxies[delay].endpoint, here.bucket, queue.name, partitions=partitions)
    began = time.process_time()
    with draining(queue, concurrency=concurrency) as wait:
        done = wait(messages, seconds=MOST_SECONDS)
        return Drained(done.per_second, (time.process_time() - began) / max(done.messages, 1) * 1000)


def _drain_theirs(here: Place, delay: float, concurrency: int) -> float:
    port = here.proxies[delay].port if delay else here.port
    with s3db.plugin(here.port, here.bucket, concurrency=concurrency) as plugin:
        plugin.enqueue(THEIR_MESSAGES, BODY)
        done = plugin.process(port, THEIR_MESSAGES, concurrency=concurrency, seconds=SECONDS, patience=PATIENCE)
    # None ended: less than one in that time, and a ratio needs a number.
    return max(done.messages, 1) / done.seconds


def _at(delay: float, concurrency: int) -> str:
    return f"{concurrency} at a time, {'+20 ms a request' if delay else 'no delay'}"
