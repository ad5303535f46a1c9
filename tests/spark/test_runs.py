"""Whole runs: boto3 → the local EMR Serverless → spark-submit → drain.py from its zip → a real S3 server."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable

import boto3
import pytest

from infra.local.emr import EmrServerless
from infra.spark_code import ENTRY_POINT, code_zip
from s3queue import Queue
from s3queue.settings import Deployment
from s3queue.spark_runs.emr_serverless import EmrServerless as Jobs
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.slots import RunStore
from s3queue.spark_runs.watch import RunWatch
from s3queue.stores.s3 import S3Store, client
from s3queue.sweeper.sweeper import Sweeper
from servers import ACCESS_KEY, REGION, SECRET_KEY, fresh_bucket

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]
ROWS = 20


class Lane:
    """What is deployed, in one process: worker, sweeper, service; only Spark and S3 are elsewhere."""

    def __init__(self, endpoint: str, folder) -> None:
        import queues

        s3 = client(endpoint)
        self.bucket = fresh_bucket(s3)
        self.store = S3Store(self.bucket, client=s3)
        self.queue = Queue(store=self.store, name="exports", settings=queues.load_one("exports").settings)
        environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        assets = [f"{ENTRY_POINT.parent}/", f"{code_zip().parent}/"]
        self.emr = EmrServerless(folder, environment=environment, on_change=self._changed, assets=assets)
        deployment = Deployment(
            bucket=self.bucket,
            workers={},
            spark_application=self.emr.application,
            spark_role="arn:aws:iam::000000000000:role/spark",
            spark_entry_point=str(ENTRY_POINT),
            spark_code=str(code_zip()),
        )
        connected = boto3.client("emr-serverless", endpoint_url=self.emr.endpoint, region_name=REGION)
        self.jobs = Jobs(connected, deployment)
        self.launcher = Launcher(self.jobs, self.bucket)
        self.watch = RunWatch(self.jobs, self.bucket)
        self.sweeper = Sweeper(queue=self.queue, dispatch=self.launch, look_after_runs=self.watch.look_after)

    def _changed(self, event) -> None:
        # From a thread of its own, as Lambda is: the service does not wait for it.
        threading.Thread(
            target=self.watch.job_changed, args=({"exports": self.queue}, event["detail"]), daemon=True
        ).start()

    def launch(self, paths) -> None:
        self.launcher.launch(self.queue, list(paths))

    def until(self, done: Callable[[], bool], seconds: float = 400) -> None:
        give_up_at = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < give_up_at, self.describe()
            time.sleep(0.1)

    def describe(self) -> str:
        logs = [job.log.read_text(errors="replace")[-3000:] for job in self.emr.jobs.values() if job.log.exists()]
        return "\n".join([*(f"{job.id} {job.state} {job.details}" for job in self.emr.jobs.values()), *logs])

    def keys(self, kind: str) -> list[str]:
        return [entry.key for entry in self.store.list(self.queue.keys.prefix(kind)).objects]


@pytest.fixture
def lane(seaweedfs_endpoint, tmp_path):
    found = Lane(seaweedfs_endpoint, tmp_path)
    with found.emr:
        yield found


def enqueue(lane: Lane, count: int, bad: int = 0) -> tuple[list[str], list[str]]:
    lines = b"".join(json.dumps({"n": n, "even": n % 2 == 0}).encode() + b"\n" for n in range(ROWS))
    lane.store.put("datasets/numbers/1.ndjson", lines)
    request = {"source": "datasets/numbers/", "source_format": "ndjson", "filter": "even", "format": "json"}
    good = [lane.queue.enqueue(request | {"destination": f"analytics/exports/{number}/"}) for number in range(count)]
    return good, [lane.queue.enqueue(request | {"destination": "elsewhere/"}) for _ in range(bad)]


def check(lane: Lane, good: list[str], bad: list[str]) -> None:
    for path in good:
        record = lane.queue.status(path).record
        assert record.outcome == "completed", record
        assert record.result["rows"] == ROWS // 2
        (file,) = record.result["files"]
        assert len(lane.store.open(file).read().splitlines()) == ROWS // 2
    for path in bad:
        record = lane.queue.status(path).record
        assert (record.outcome, record.attempt) == ("dead", 1)
        assert "outside of analytics/exports/" in record.failure.message
    assert lane.keys("messages") == lane.keys("leases") == lane.keys("workers") == []


def test_thirty_heavy_messages_are_one_run_with_thirty_outcomes(lane):
    good, bad = enqueue(lane, 28, bad=2)

    lane.launch(good[:1])
    for path in good[1:4]:
        lane.launch([path])

    lane.until(lambda: all(job.has_ended for job in lane.emr.jobs.values()))
    assert [job.state for job in lane.emr.jobs.values()] == ["SUCCESS"], lane.describe()
    check(lane, good, bad)
    (run,) = [key for key in lane.keys("runs") if key.endswith(".json")]
    manifest = json.loads(lane.store.open(run).read())
    assert (manifest["state"], manifest["counts"]) == ("closed", {"completed": 28, "dead": 2})


@pytest.mark.parametrize("moment", ["while it takes over", "while it works"])
def test_a_driver_killed_with_9_loses_nothing(lane, moment):
    good, bad = enqueue(lane, 4, bad=1)
    lane.launch([])
    (job,) = lane.emr.jobs.values()
    book = RunStore(lane.queue)

    def state() -> dict:
        (run,) = [key for key in lane.keys("runs") if key.endswith(".json")]
        return json.loads(lane.store.open(run).read())

    lane.until(lambda: job.process is not None)
    if moment == "while it takes over":
        lane.until(lambda: state()["state"] == "running")
    else:
        lane.until(lambda: bool(lane.keys("records")))
    os.killpg(job.process.pid, signal.SIGKILL)
    lane.until(lambda: job.has_ended and book.slot(0) is None)
    assert job.state == "FAILED"

    # What was not started is back at once; what was, after its backoff. The sweeper dispatches both.
    lane.queue.configure(retry_base=1, rescue_after=1)

    def swept() -> bool:
        lane.sweeper.sweep()
        return not lane.keys("messages")

    lane.until(swept)
    lane.until(lambda: all(job.has_ended for job in lane.emr.jobs.values()))
    check(lane, good, bad)
    assert max(lane.queue.status(path).record.attempt for path in good) <= 2
