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

from infra.local.emr.serverless import EmrServerless
from infra.packaging.spark_code import ENTRY_POINT, code_zip
from s3queue import Queue
from s3queue.deployment import Deployment
from s3queue.documents.partition import read_journal
from s3queue.spark_runs.emr_serverless import EmrServerless as Jobs
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.slots import RunStore
from s3queue.spark_runs.watch import RunWatch
from s3queue.stores.s3 import S3Store, client
from s3queue.sweeper.sweeper import Sweeper
from support.s3_servers import ACCESS_KEY, REGION, SECRET_KEY, fresh_bucket

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]
ROWS = 20


class Installation:
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
        self.sweeper = Sweeper(queue=self.queue, dispatch=self.launch, check_runs=self.watch.check)

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
def installation(seaweedfs_endpoint, tmp_path):
    found = Installation(seaweedfs_endpoint, tmp_path)
    with found.emr:
        yield found


REQUEST = {"source": "datasets/numbers/", "source_format": "ndjson", "filter": "even", "format": "json"}


def put_numbers(installation: Installation) -> None:
    lines = b"".join(json.dumps({"n": n, "even": n % 2 == 0}).encode() + b"\n" for n in range(ROWS))
    installation.store.put("datasets/numbers/1.ndjson", lines)


def enqueue(installation: Installation, count: int, bad: int = 0) -> tuple[list[str], list[str]]:
    put_numbers(installation)
    good = [
        installation.queue.enqueue(REQUEST | {"destination": f"analytics/exports/{number}/"}) for number in range(count)
    ]
    return good, [installation.queue.enqueue(REQUEST | {"destination": "elsewhere/"}) for _ in range(bad)]


def check(installation: Installation, good: list[str], bad: list[str]) -> None:
    for path in good:
        record = installation.queue.status(path).record
        assert record.outcome == "completed", record
        assert record.result["rows"] == ROWS // 2
        (file,) = record.result["files"]
        assert len(installation.store.open(file).read().splitlines()) == ROWS // 2
    for path in bad:
        record = installation.queue.status(path).record
        assert (record.outcome, record.attempt) == ("dead", 1)
        assert "must start with analytics/exports/" in record.failure.message
    assert installation.keys("messages") == installation.keys("leases") == installation.keys("workers") == []


def test_thirty_heavy_messages_are_one_run_with_thirty_outcomes(installation):
    good, bad = enqueue(installation, 28, bad=2)

    installation.launch(good[:1])
    for path in good[1:4]:
        installation.launch([path])

    installation.until(lambda: all(job.has_ended for job in installation.emr.jobs.values()))
    assert [job.state for job in installation.emr.jobs.values()] == ["SUCCESS"], installation.describe()
    check(installation, good, bad)
    (run,) = [key for key in installation.keys("runs") if key.endswith(".json")]
    manifest = json.loads(installation.store.open(run).read())
    assert (manifest["state"], manifest["counts"]) == ("closed", {"completed": 28, "dead": 2})
    # Both Pythons were measured: what Spark calls its processes is as the emulator thinks.
    (job,) = installation.emr.jobs.values()
    assert {place: 10 < peak < 3072 for place, peak in job.memory.peaks.items()} == {"driver": True, "executor": True}


def test_the_messages_of_a_group_run_one_after_the_other_through_a_whole_run(installation):
    """[P9] Two groups side by side; a message that dies lets its group go on."""
    put_numbers(installation)
    groups: dict[str, list[str]] = {"ada": [], "bob": []}
    for number in range(4):
        for group, paths in groups.items():
            place = "elsewhere" if (group, number) == ("bob", 1) else f"analytics/exports/{group}-{number}"
            paths.append(installation.queue.enqueue(REQUEST | {"destination": f"{place}/"}, group=group))

    # As their events do: the first starts a run, the others find it.
    for path in (groups["ada"][0], groups["bob"][0], groups["bob"][3]):
        installation.launch([path])

    installation.until(lambda: all(job.has_ended for job in installation.emr.jobs.values()))
    assert [job.state for job in installation.emr.jobs.values()] == ["SUCCESS"], installation.describe()
    for group, paths in groups.items():
        journals = sorted(key for key in installation.keys("records") if f"/@{group}/" in key)
        records = [record for key in journals for record in read_journal(installation.store.open(key))]
        # In the order in which they ended, and each began after the one before it had.
        assert [record.path for record in records] == paths, installation.describe()
        outcomes = ["dead" if (group, number) == ("bob", 1) else "completed" for number in range(4)]
        assert [record.outcome for record in records] == outcomes
        written = [
            max(file.modified_at for file in installation.store.list(f"analytics/exports/{group}-{number}/").objects)
            for number in range(4)
            if (group, number) != ("bob", 1)
        ]
        assert written == sorted(written)
    check(installation, [path for paths in groups.values() for path in paths if path != groups["bob"][1]], [])


@pytest.mark.parametrize("moment", ["while it takes over", "while it works"])
def test_a_driver_killed_with_9_loses_nothing(installation, moment):
    good, bad = enqueue(installation, 4, bad=1)
    installation.launch([])
    (job,) = installation.emr.jobs.values()
    book = RunStore(installation.queue)

    def state() -> dict:
        (run,) = [key for key in installation.keys("runs") if key.endswith(".json")]
        return json.loads(installation.store.open(run).read())

    installation.until(lambda: job.process is not None)
    if moment == "while it takes over":
        installation.until(lambda: state()["state"] == "running")
    else:
        installation.until(lambda: bool(installation.keys("records")))
    os.killpg(job.process.pid, signal.SIGKILL)

    def is_given_up() -> bool:
        """Its slot is free; or it cools, if nothing was started: for all that anyone knows, the job cannot start."""
        held = book.slot(0)
        return held is None or held.slot.state == "cooling"

    installation.until(lambda: job.has_ended and is_given_up())
    assert job.state == "FAILED"

    # What was not started is back at once; what was, after its backoff. The sweeper dispatches both.
    installation.queue.configure(retry_base=1, rescue_after=1)

    def swept() -> bool:
        installation.sweeper.sweep()
        return not installation.keys("messages")

    installation.until(swept)
    installation.until(lambda: all(job.has_ended for job in installation.emr.jobs.values()))
    check(installation, good, bad)
    assert max(installation.queue.status(path).record.attempt for path in good) <= 2
