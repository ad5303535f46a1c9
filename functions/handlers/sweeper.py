"""The sweeper function: every minute, for every queue, it makes sure that no message is forgotten.

While something is in flight, it stays for its minute and checks every two seconds for due messages, so that a short
delay stays short; otherwise it returns at once. The record that Lambda keeps of a worker's crash wakes it, and so does
a delayed message that is due within a minute, so that no message waits for the next one. Two of them may run at the
same time.
"""

from __future__ import annotations

import heapq
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import unquote_plus

from s3queue.clock import Clock, SystemClock
from s3queue.connect import open_store
from s3queue.deployment import FAILED_INVOCATIONS, SWEEPER_STAYS_SECONDS, Deployment
from s3queue.events import Events, publish_to
from s3queue.paths import due_of, runs_once
from s3queue.queue import Queue
from s3queue.spark_runs.runs import SparkRuns
from s3queue.sweeper.sweeper import SOON, SWEEP_REQUESTS, SWEEP_SECONDS, Sweeper
from s3queue.worker.application import Application

from .telemetry import Telemetry, is_starting, start_logging

_log = logging.getLogger(__name__)
#: The last sweep starts this long before the function's time ends: its own budget is 20 s.
LAST_SWEEP_SECONDS = 25.0
#: Sweeps have to be over this long before the function's time ends; each has at least so much time itself.
SPARE_SECONDS = 5.0
SHORTEST_SWEEP_SECONDS = 1.0
#: How long it stays for a delayed message: longer than `SOON`, which is as long as the next minute's sweep may take to
#: come.
DELAYED_STAYS_SECONDS = 62.0
#: After a failed sweep (a throttled dispatch, an outage), the queue is swept again after this time.
AGAIN_SECONDS = 5.0
#: Lambda accepts 1 MB per asynchronous invocation; emulators and older limits accept 256 KB.
PAYLOAD_BYTES = 200_000
EMR_CHANGE = "EMR Serverless Job Run State Change"
#: How a run ends that did not do its work.
RUN_FAILED = ("FAILED", "CANCELLED")


@dataclass(frozen=True, slots=True)
class Round:
    """The sweeper and the telemetry of one queue."""

    #: The name of the queue's worker function; empty if pull workers alone run its messages.
    function: str
    sweeper: Sweeper
    telemetry: Telemetry


@dataclass(frozen=True, slots=True)
class Runtime:
    """What one execution environment keeps from minute to minute; a Sweeper remembers which leases need no GET."""

    rounds: Mapping[str, Round]
    #: Queues that cannot be swept, because their modules cannot be imported.
    broken: Mapping[str, Exception]
    runs: SparkRuns | None
    clock: Clock
    #: What is no queue's: a Spark run that failed. Published by the first of several sweepers, if the events of any
    #: queue are.
    events: Events = field(default_factory=Events)
    #: Queues whose settings were published.
    published: set[str] = field(default_factory=set)


@cache
def runtime() -> Runtime:
    """Made once, without a request to AWS: in Lambda's init phase, elsewhere by the first invocation."""
    logger = start_logging()
    deployment = Deployment.from_env(os.environ)
    store, _ = open_store(f"s3://{deployment.bucket}")
    client = cache(_lambda_client)
    worker_id = f"sweeper-{secrets.token_hex(6)}"
    runs = SparkRuns.of(deployment)
    rounds: dict[str, Round] = {}
    broken: dict[str, Exception] = {}
    application = Application()
    for name, function in deployment.workers.items():
        try:
            definition = application.load_one(name)
        except Exception as error:
            _log.exception("queue not swept, its module cannot be imported: %s", name)
            broken[name] = error
            continue
        queue = Queue(
            store=store,
            name=name,
            settings=definition.settings,
            worker_id=worker_id,
            sends_to=definition.sends_to,
            flows=definition.flows,
        )
        definition.events.pass_on(queue.events)
        telemetry = Telemetry(queue, logger)
        telemetry.publish(deployment)
        check_runs = runs.check if runs else None
        dispatch = notifier(function, client) if function else None
        sweeper = Sweeper(
            queue=queue,
            dispatch=dispatch,
            check_runs=check_runs,
            schedules=definition.schedules,
            counts_hour=True,
            counts_deaths=telemetry.counts_deaths,
        )
        rounds[name] = Round(function, sweeper, telemetry)
    logger.append_keys(worker=worker_id)
    return Runtime(rounds, broken, runs, SystemClock(), _own_events(deployment))


def handle(event: Any, context: Any) -> dict[str, int]:
    """Sweep for up to a minute; returns how many ticks each queue had.

    Raises:
        Exception: a queue could not be swept at all; the others were, and Lambda counts an error.
    """
    kept = runtime()
    if isinstance(event, dict) and event.get("detail-type") == EMR_CHANGE:
        _job_changed(kept, event)
        return {}
    keys = list(_keys(event))
    if delayed := _delayed(kept, keys):
        return _await_delayed(kept, delayed, context)
    crashed = list(_crashed(kept, keys))
    for one in crashed:
        one.worker_crashed()
    if not crashed:  # a message waits for those
        _publish(kept)
    now, left = kept.clock.monotonic(), context.get_remaining_time_in_millis() / 1000
    try:
        return _sweep(kept, now + min(SWEEPER_STAYS_SECONDS, left - LAST_SWEEP_SECONDS), now + left - SPARE_SECONDS)
    finally:
        for each in kept.rounds.values():
            each.telemetry.flush()


def _publish(kept: Runtime) -> None:
    """Once in each execution environment, so once after a deployment: operators see its queues before any message."""
    for name, one in kept.rounds.items():
        if name not in kept.published:
            kept.published.add(name)
            one.sweeper.queue.publish_settings("deployment")


def _await_delayed(kept: Runtime, delayed: Mapping[str, Sequence[datetime]], context: Any) -> dict[str, int]:
    """Stay for the delayed messages that are due soon. Any other is found by a later minute's sweep, in time: then this
    returns without a request.
    """
    soon = kept.clock.now() + SOON
    names = [name for name, instants in delayed.items() if min(instants, default=soon) < soon]
    now, left = kept.clock.monotonic(), context.get_remaining_time_in_millis() / 1000
    until = now + min(DELAYED_STAYS_SECONDS, left - LAST_SWEEP_SECONDS)
    try:
        return _sweep(kept, until, now + left - SPARE_SECONDS, only=names) if names else {}
    finally:
        for name in names:
            kept.rounds[name].telemetry.flush()


def _delayed(kept: Runtime, keys: Sequence[str]) -> dict[str, list[datetime]]:
    """Queue → when messages are due that were PUT into `delayed/`, as S3's notification names them; empty if it is of
    something else. What schedules put is not in it: a sweeper put that, well before it is due.
    """
    found: dict[str, list[datetime]] = {}
    for key in keys:
        name, _, path = key.partition("/")
        if name in kept.rounds and path.startswith("delayed/"):
            due_at = None if runs_once(path) else due_of(path)
            found.setdefault(name, []).extend([due_at] if due_at else [])
    return found


def _sweep(kept: Runtime, until: float, end: float, only: Sequence[str] | None = None) -> dict[str, int]:
    """Tick every queue whenever that is needed, until all are idle or the time is up: no tick begins after `until`, and
    all have to be over at `end`. `only` the delayed messages of these queues, if given: what a whole sweep would put
    for schedules would wake the sweeper again, and again, until Lambda takes that for a loop.
    """
    clock, errors = kept.clock, dict(kept.broken) if only is None else {}
    names = _rotated(kept) if only is None else list(only)
    ticks = dict.fromkeys(kept.rounds if only is None else only, 0)
    agenda = [(clock.monotonic(), place, name) for place, name in enumerate(names)]
    heapq.heapify(agenda)
    while agenda:
        at, place, name = heapq.heappop(agenda)
        now = clock.monotonic()
        # Every queue gets its first tick, however long the others took.
        if ticks[name] and max(at, now) >= until:
            break
        clock.sleep(max(0.0, at - now))
        ticks[name] += 1
        # A share of the time for each queue that waits: a large one must not use up what the others need. One that was
        # swept, and only wants another look, waits for none: else the last ones would not get beyond their first LISTs.
        others = sum(ticks[other] < ticks[name] for _, _, other in agenda)
        share = (end - clock.monotonic()) / (others + 1)
        seconds = max(SHORTEST_SWEEP_SECONDS, min(SWEEP_SECONDS, share))
        requests = round(SWEEP_REQUESTS * seconds / SWEEP_SECONDS)
        sweeper = kept.rounds[name].sweeper
        report = sweeper.tick(seconds=seconds, requests=requests) if only is None else sweeper.tick_delayed()
        errors.pop(name, None)
        if report is None:
            continue
        kept.rounds[name].telemetry.swept(report)
        if report.error:
            _log.error("sweep failed, trying again: %s", name, exc_info=report.error)
            errors[name] = report.error
            report.next_tick = AGAIN_SECONDS
        if report.next_tick is not None:
            heapq.heappush(agenda, (clock.monotonic() + report.next_tick, place, name))
    if errors:
        raise next(iter(errors.values()))
    return ticks


def _rotated(kept: Runtime) -> list[str]:
    """The queues, beginning with another one every minute: should the time not be enough for all, each has its turn.

    By wall time: a function that was killed remembers nothing.
    """
    names = list(kept.rounds)
    first = int(kept.clock.now().timestamp() // 60) % max(1, len(names))
    return names[first:] + names[:first]


def _crashed(kept: Runtime, keys: Sequence[str]) -> Iterator[Sweeper]:
    """The sweepers of the queues whose workers crashed, as S3's notification of Lambda's records names them."""
    for one in kept.rounds.values():
        if one.function and any(key.startswith(f"{FAILED_INVOCATIONS}{one.function}/") for key in keys):
            _log.info("worker crashed, looking for its messages: %s", one.sweeper.queue.name)
            yield one.sweeper


def _keys(event: Any) -> Iterator[str]:
    """The keys that S3's notification names; none if it is another event."""
    records = event.get("Records") if isinstance(event, dict) else None
    for record in records if isinstance(records, list) else ():
        match record:
            case {"s3": {"object": {"key": str(key)}}}:
                yield unquote_plus(key)
            case _:
                _log.error("event record skipped, not from S3")


def notifier(function: str, client: Callable[[], Any]) -> Callable[[Sequence[str]], None]:
    """A dispatch that invokes a worker function without waiting for it; raises if Lambda did not accept it.

    `client` makes boto3's client; it is called when there is something to dispatch.
    """

    def dispatch(paths: Sequence[str]) -> None:
        for payload in payloads(paths):
            client().invoke(FunctionName=function, InvocationType="Event", Payload=payload)

    return dispatch


def payloads(paths: Sequence[str]) -> Iterator[bytes]:
    """The payloads for these paths, each small enough: a key can have 1,024 bytes, and a hundred may come at once."""
    chunk: list[str] = []
    size = 0
    for path in paths:
        length = len(json.dumps(path, ensure_ascii=False).encode()) + 2
        if chunk and size + length > PAYLOAD_BYTES:
            yield _payload(chunk)
            chunk, size = [], 0
        chunk.append(path)
        size += length
    if chunk:
        yield _payload(chunk)


def _payload(paths: Sequence[str]) -> bytes:
    return json.dumps({"paths": list(paths)}, ensure_ascii=False).encode()


def _lambda_client() -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=5, read_timeout=10, tcp_keepalive=True
    )
    return boto3.client("lambda", config=config)


def _own_events(deployment: Deployment) -> Events:
    events = Events()
    if deployment.run_event_bus:
        import boto3

        events.on("*", publish_to(deployment.run_event_bus, boto3.client("events"), "failures"))
    return events


def _job_changed(kept: Runtime, event: Mapping[str, Any]) -> None:
    detail = event.get("detail") or {}
    _log.info("Spark job changed: %s: %s", detail.get("jobRunId"), detail.get("state"))
    if detail.get("state") in RUN_FAILED:
        told = {"job": detail.get("jobRunId"), "application": detail.get("applicationId"), "state": detail["state"]}
        kept.events.emit("run.failed", at=event.get("time"), **told)
    if kept.runs is None:
        _log.warning("Spark job change ignored, none of the queues has heavy messages: %s", detail.get("jobRunId"))
        return
    kept.runs.job_changed({name: one.sweeper.queue for name, one in kept.rounds.items()}, detail)


if is_starting():
    runtime()
