"""A queue on Spark without Spark: bucket, service, launcher, sweeper and drivers, on one simulated clock."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from s3queue import Context, Queue, QueueSettings, Reject
from s3queue.documents.record import Record
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.slots import as_run
from s3queue.spark_runs.watch import RunWatch
from spark.heavy.driver import Driver, Work
from spark.heavy.messages import MessageWork
from support.fake_jobs import FakeJobs
from support.workbench import Workbench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: What messages ask for, see `World.per_message`.
WORK = ["ok", "fail once", "reject", "ok", "fail", "ok", "ok"]


class World:
    """A bucket, a service, a queue of heavy messages, and everything that works on them."""

    def __init__(self, **settings: Any) -> None:
        self.bench = Workbench()
        self.jobs = FakeJobs()
        self.options: dict[str, Any] = {
            "engine": "spark",
            "visibility_timeout": 60,
            "messages_per_run": 3,
            "retry_base": 1,
            **settings,
        }
        self.queue = self.bench.queue("exports", **self.options)
        self.starts: Counter[str] = Counter()
        self.watch = RunWatch(self.jobs, "bench")
        self.dispatched: list[str] = []
        self.sweeper = self.bench.sweeper(self.queue, self.dispatched)
        self.sweeper.check_runs = self.watch.check

    def per_message(self, spark: SparkSession, message: dict[str, Any], context: Context) -> Any:
        self.starts[context.path] += 1
        if message["do"] == "reject":
            raise Reject("not like this")
        if message["do"] == "fail" or (message["do"] == "fail once" and context.attempt == 1):
            raise RuntimeError("did not work")
        return {"did": message["do"]}

    def launch(self, paths: Iterable[str] = (), store: Any = None) -> str:
        queue = self.queue if store is None else self.seen_through(store)
        return Launcher(self.jobs, "bench", threads=1).launch(queue, list(paths))

    def seen_through(self, store: Any) -> Queue:
        settings = QueueSettings.of(**({"retry_jitter": False} | self.options))
        clock, chance = self.bench.clock, self.bench.chance
        return Queue(store=store, name="exports", settings=settings, clock=clock, chance=chance)

    def driver(
        self,
        run: str | None = None,
        *,
        store: Any = None,
        work: Work | None = None,
        seconds: float = 3600.0,
        **options: Any,
    ) -> Driver:
        run = run or list(self.jobs.started)[-1]
        queue = as_run(self.seen_through(store or self.bench.store), run)
        work = work or MessageWork(queue, self.per_message, None)
        return Driver(queue, work, seconds=seconds, threads=1, beats=False, **options)

    def settle(self, rounds: int = 30) -> None:
        """Sweep, launch, drain, let time pass, until nothing is left."""
        for _ in range(rounds):
            self.sweeper.sweep()
            self.launch_what_was_dispatched()
            if not self.left():
                return
            self.bench.clock.advance(61)
        raise AssertionError(f"never settled: {self.bench.keys()}")

    def launch_what_was_dispatched(self) -> None:
        paths, self.dispatched[:] = list(dict.fromkeys(self.dispatched)), []
        if paths and self.launch(paths) == "started":
            self.jobs.becomes("running", "RUNNING")
            self.driver().drain()
            self.jobs.becomes("ended", "SUCCESS")

    def left(self) -> list[str]:
        return [
            key for kind in ("messages", "delayed", "leases", "runs/slot") for key in self.bench.keys(f"exports/{kind}")
        ]

    def records(self) -> dict[str, Record]:
        prefix = self.queue.keys.prefix("records")
        return {
            key.removeprefix(prefix): Record.from_bytes(self.bench.read(key), key) for key in self.bench.keys(prefix)
        }

    def manifest(self, run: str | None = None) -> Any:
        return json.loads(self.bench.read(self.queue.keys.manifest(run or list(self.jobs.started)[-1])))


def check_everything(world: World, paths: dict[str, str]) -> None:
    """Every message has its outcome, once; a crash has cost an attempt at most, and only what was started."""
    records = world.records()
    for path, what in paths.items():
        assert records[path].outcome == ("dead" if what in ("reject", "fail") else "completed"), (path, what)
        # One crash costs a message that was started one attempt, and others none.
        assert records[path].attempt <= {"ok": 2, "reject": 2}.get(what, 3)
    assert set(records) == set(paths)
    assert set(world.bench.keys("exports/dead/")) == {
        f"exports/dead/{path}" for path, what in paths.items() if what in ("reject", "fail")
    }
    assert max(world.starts.values()) <= world.queue.settings.max_attempts  # [P5]
