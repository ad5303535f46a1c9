"""Latency: from the moment PutObject returns to the start of the handler.

On the local stack, where MiniStack delivers S3's events, against a function that does nothing but note its start: what
is between the two is s3queue's. In this process on SeaweedFS, against the bare requests of a claim: what is between the
two is our code. All clocks are this machine's.

MiniStack rings before it answers, so that a function may start before PutObject returns: ratios are taken from the
moment it was sent.
"""

from __future__ import annotations

import io
import json
import statistics
import time
import uuid
import zipfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from aws_lambda_powertools import Logger
from rich.console import Console

from handlers.telemetry import Telemetry
from infra.local.application import for_this_machine
from infra.local.home import Home
from infra.local.stack import LocalStack, local_stack
from infra.local.steps import Steps
from s3queue.connect import connect
from s3queue.queue import Queue
from s3queue.store import ObjectStore
from s3queue.worker import notifications as notifications
from s3queue.worker.definition import define
from s3queue.worker.invocation import InvocationRunner
from s3queue.worker.pull_worker import Worker
from support.s3_servers import REGION, fresh_bucket, s3_client, seaweedfs_server

from .cold_start import event
from .instruments.harness import Bench, Part
from .instruments.scene import credentials

T = TypeVar("T")
MESSAGES = 40
PERCENTILES = (("p50", 50), ("p99", 99))
#: Ends a wait that is in vain.
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.1
BARE = """
import os, time
def handle(event, context):
    started_at = time.time()
    name = event["Records"][0]["s3"]["object"]["key"]
    with open(os.path.join(os.environ["NOTES"], name + ".unfinished"), "w") as note:
        note.write(repr(started_at))
    os.rename(note.name, os.path.join(os.environ["NOTES"], name))
"""


def run(bench: Bench) -> None:
    with bench.part("latency", "Latency: PutObject returned → handler started") as part:
        _on_the_local_stack(bench, part)
        with seaweedfs_server() as endpoint:
            _in_process(bench, part, endpoint)
            _pull_worker(bench, part, endpoint)


# The local stack


def _on_the_local_stack(bench: Bench, part: Part) -> None:
    with TemporaryDirectory(prefix="bench-stack-") as folder:
        # A home of its own: the stack of `make up` is left alone.
        home = Home(Path(folder))
        variables = for_this_machine(home)
        with (
            bench.console.status("deploying the local stack"),
            local_stack(home, variables=variables, steps=Steps(Console(file=io.StringIO()))) as stack,
        ):
            ours = Emails(stack, Path(variables["EMAIL_OUTBOX"]))
            bare = Bare.deploy(stack, home.path / "notes")
            cold = ours.latency(), bare.latency()
            runs = [_turn(ours.latency, bare.latency) for _ in range(bench.repetitions)]
    part.raw["local stack, ms"] = {
        "cold": {"ours": asdict(cold[0]), "bare": asdict(cold[1])},
        "warm": [{"ours": [*map(asdict, mine)], "bare": [*map(asdict, theirs)]} for mine, theirs in runs],
    }
    against, what = "a bare Lambda", "local stack, from PutObject sent"
    sent = [([one.since_sent for one in mine], [one.since_sent for one in theirs]) for mine, theirs in runs]
    bench.pair(f"{what}, cold", [(cold[0].since_sent, cold[1].since_sent)], against, unit="ms", better="less")
    _percentiles(bench, f"{what}, warm", sent, against)
    for name, percentile in PERCENTILES:
        ours_ms, bare_ms = (
            [_percentile([one.since_returned for one in run[who]], percentile) for run in runs] for who in (0, 1)
        )
        note = f"{against}: {statistics.median(bare_ms):.3g}"
        bench.series(f"local stack, from PutObject returned, warm, {name}", ours_ms, unit="ms", note=note)


def _turn(ours: Callable[[], T], theirs: Callable[[], T]) -> tuple[list[T], list[T]]:
    """Milliseconds of so many messages each, message by message in turns."""
    pairs = [(ours(), theirs()) for _ in range(MESSAGES)]
    return [mine for mine, _ in pairs], [other for _, other in pairs]


def _percentiles(bench: Bench, what: str, runs: Sequence[tuple[list[float], list[float]]], against: str) -> None:
    for name, percentile in PERCENTILES:
        pairs = [(_percentile(mine, percentile), _percentile(theirs, percentile)) for mine, theirs in runs]
        bench.pair(f"{what}, {name}", pairs, against, unit="ms", better="less")
    added = [statistics.median(mine) - statistics.median(theirs) for mine, theirs in runs]
    bench.series(f"{what}: added at p50", added, unit="ms")


def _percentile(values: Sequence[float], percentile: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percentile - 1]


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds until the handler started."""

    since_sent: float
    since_returned: float

    @classmethod
    def of(cls, put: Callable[[], Any], started_at: Callable[[], float]) -> Timing:
        sent_at = time.time()
        put()
        returned_at = time.time()
        started = started_at()
        return cls((started - sent_at) * 1000, (started - returned_at) * 1000)


@dataclass(frozen=True, slots=True)
class Emails:
    """The deployed queue `emails`: its handler starts by writing the mail into a folder."""

    stack: LocalStack
    outbox: Path

    def latency(self) -> Timing:
        client, bucket = self.stack.client("s3"), self.stack.bucket
        key = f"emails/messages/{uuid.uuid4().hex}.json"
        body = json.dumps({"to": "ada@example.com", "subject": "Hello"}).encode()
        seen = self._mails()
        timing = Timing.of(
            lambda: client.put_object(Bucket=bucket, Key=key, Body=body),
            lambda: _until(lambda: self._mails() - seen).pop().stat().st_mtime,
        )
        # The end of the message is not measured, but the next one must not meet it.
        _until(lambda: not client.list_objects_v2(Bucket=bucket, Prefix="emails/leases/").get("Contents"))
        return timing

    def _mails(self) -> set[Path]:
        return set(self.outbox.glob("*.eml"))


@dataclass(frozen=True, slots=True)
class Bare:
    """A function of nobody's framework, rung by a bucket of its own."""

    client: Any
    bucket: str
    notes: Path

    @classmethod
    def deploy(cls, stack: LocalStack, notes: Path) -> Bare:
        notes.mkdir()
        code = io.BytesIO()
        with zipfile.ZipFile(code, "w") as zipped:
            zipped.writestr("bare.py", BARE)
        deployed = stack.functions[stack.workers["emails"]]
        arn = stack.client("lambda").create_function(
            FunctionName="bare",
            Runtime=deployed["Runtime"],
            Role=deployed["Role"],
            Handler="bare.handle",
            Code={"ZipFile": code.getvalue()},
            MemorySize=deployed["MemorySize"],
            Environment={"Variables": {"NOTES": str(notes)}},
        )["FunctionArn"]
        client, bucket = stack.client("s3"), f"bare-{uuid.uuid4().hex[:12]}"
        client.create_bucket(Bucket=bucket)
        rung = [{"LambdaFunctionArn": arn, "Events": ["s3:ObjectCreated:*"]}]
        client.put_bucket_notification_configuration(
            Bucket=bucket, NotificationConfiguration={"LambdaFunctionConfigurations": rung}
        )
        return cls(client, bucket, notes)

    def latency(self) -> Timing:
        name = uuid.uuid4().hex
        note = self.notes / name
        return Timing.of(
            lambda: self.client.put_object(Bucket=self.bucket, Key=name, Body=b"{}"),
            lambda: float(_until(lambda: note.exists() and note.read_text())),
        )


def _until(question: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := question()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.005)
    return answer


# In this process


def _in_process(bench: Bench, part: Part, endpoint: str) -> None:
    """A worker called with S3's event, as Lambda would, against the two requests that its claim is made of."""
    for store in ("boto3", "direct"):
        with credentials():
            bucket = fresh_bucket(s3_client(endpoint))
            worker = CalledWorker(
                connect(f"s3://{bucket}/orders", endpoint_url=endpoint, region=REGION, store=store), bucket
            )
            worker.latency()
            runs = [_turn(worker.latency, worker.bare_claim) for _ in range(bench.repetitions)]
        part.raw[f"in process, {store}, ms"] = [{"ours": mine, "bare": theirs} for mine, theirs in runs]
        _percentiles(bench, f"in process on SeaweedFS, {store}", runs, "the same PUT and GET, bare")


class CalledWorker:
    """handlers.worker without Lambda: event → notification → claim → handler."""

    def __init__(self, queue: Queue, bucket: str) -> None:
        self._queue, self._bucket = queue, bucket
        self._started_at = 0.0
        definition = define(queue.name)
        definition.handler(self._handle)
        telemetry = Telemetry(queue, Logger(service="bench", stream=io.StringIO()))
        self._runner = InvocationRunner(queue, definition, around_message=telemetry.message)

    def latency(self) -> float:
        path = self._queue.enqueue({"order": 4711})
        rung = event(self._bucket, self._queue.keys.message(path))
        called_at = time.perf_counter()
        with redirect_stdout(io.StringIO()):
            found = self._runner.run(notifications.read(rung, self._queue.keys, self._bucket), lambda: 60.0)
        assert found == {"completed": 1}, found
        return (self._started_at - called_at) * 1000

    def bare_claim(self) -> float:
        """What no claim can do without: one conditional PUT, one GET."""
        store: ObjectStore = self._queue.store
        path = self._queue.enqueue({"order": 4711})
        lease, message = self._queue.keys.lease(path), self._queue.keys.message(path)
        began = time.perf_counter()
        store.put(lease, b"x" * 200, if_absent=True, content_type="application/json")
        found = store.open(message)
        assert found
        found.read()
        took = time.perf_counter() - began
        store.delete(message)
        store.delete(lease)
        return took * 1000

    def _handle(self, body: dict) -> None:
        self._started_at = time.perf_counter()


def _pull_worker(bench: Bench, part: Part, endpoint: str) -> None:
    """A worker that no event wakes: it looks every so often, and five times as seldom while nothing comes."""
    started: list[float] = []

    def handle(body: dict) -> None:
        started.append(time.perf_counter())

    def latencies(queue: Queue) -> list[float]:
        found = []
        for _ in range(MESSAGES // 2):
            seen = len(started)
            queue.enqueue({"order": 4711})
            returned_at = time.perf_counter()
            _until(lambda seen=seen: len(started) > seen)
            found.append((started[-1] - returned_at) * 1000)
        return found

    with credentials():
        queue = connect(
            f"s3://{fresh_bucket(s3_client(endpoint))}/orders", endpoint_url=endpoint, region=REGION, store="direct"
        )
        worker = Worker(queue, handle, concurrency=2, poll_interval=POLL_SECONDS)
        worker.start()
        try:
            runs = [latencies(queue) for _ in range(bench.repetitions)]
        finally:
            worker.stop()
    part.raw["pull worker, ms"] = runs
    for name, percentile in PERCENTILES:
        values = [_percentile(found, percentile) for found in runs]
        bench.series(f"pull worker, {name}", values, unit="ms", note=f"looks every {POLL_SECONDS * 1000:.0f} ms")
