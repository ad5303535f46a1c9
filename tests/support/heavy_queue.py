"""A queue whose messages go to Spark: its settings, its launcher, and what its runs wrote down."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from s3queue import Queue
from s3queue.documents.lease import Lease
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.slots import RunStore
from support.fake_jobs import FakeJobs
from support.workbench import Workbench

SPARK = {"engine": "spark", "visibility_timeout": 60, "messages_per_run": 10}


def launcher(jobs: FakeJobs) -> Launcher:
    return Launcher(jobs, "bench", threads=1)


def leases(bench: Workbench, queue: Queue) -> dict[str, Lease]:
    return {
        key.removeprefix(queue.keys.prefix("leases")): Lease.from_bytes(bench.read(key), key)
        for key in bench.keys(queue.keys.prefix("leases"))
    }


def manifest(bench: Workbench, queue: Queue, run: str) -> Any:
    return json.loads(bench.read(queue.keys.manifest(run)))


def is_taken(queue: Queue) -> bool:
    """Whether a run has the first slot; one that cools has none."""
    held = RunStore(queue).slot(0)
    return held is not None and held.slot.state != "cooling"


def take_over(queue: Queue, run: str) -> None:
    """The first thing that a driver does."""
    book = RunStore(queue)
    found = book.manifest(run)
    assert found is not None
    book.write_manifest(replace(found[0], state="running"), found[1])
