"""Forged state and Spark runs, plans and the archive's old log. No JVM: all of this is plain Python."""

from __future__ import annotations

import contextlib
import io
import random
import tracemalloc
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s3queue import Context
from s3queue.archive.old_log import OldCommit
from s3queue.archive.parts import Part, part_batches
from s3queue.documents.batch import join_lines
from s3queue.documents.partition import journal_bytes
from s3queue.encoding import dump
from s3queue.errors import CorruptState, InvalidRequest
from s3queue.keys import LATEST_STATISTICS, STATISTICS_STATE
from s3queue.spark_runs.launcher import Launcher
from s3queue.spark_runs.slots import as_run
from s3queue.spark_runs.watch import RunWatch
from s3queue.stores.memory import MemoryStore
from spark.bulk.plan import read_plan
from spark.bulk_enqueue import _bounded_lines
from spark.heavy.batches import read_message
from spark.heavy.driver import Driver
from spark.heavy.messages import MessageWork
from spark.heavy.run_manifest import NotOurs, RunLost
from spark.history.hour_lines import merge_lines
from spark.history.touched import read_state
from spark.rows.record_rows import read_record
from spark.statistics import publish
from support.counting_store import CountingStore
from support.drawn_documents import AT, FULL_RECORD
from support.fake_jobs import FakeJobs
from support.forged_documents import ARCHIVED, HUGE, ForgedStore, forgeries
from support.workbench import Workbench

FEW = 40
OPTIONS = {"engine": "spark", "visibility_timeout": 60, "messages_per_run": 3, "retry_base": 1, "max_runs": 1}


def launched() -> tuple[Workbench, FakeJobs, str, list[str]]:
    """A run that was started for three messages, and its driver not yet."""
    bench, jobs = Workbench(), FakeJobs()
    bench.memory = ForgedStore("bench", clock=bench.clock)
    bench.store = CountingStore(bench.memory)
    queue = bench.queue("exports", **OPTIONS)
    paths = [queue.enqueue({"n": number}) for number in range(3)]
    assert Launcher(jobs, "bench", threads=1).launch(queue, paths) == "started"
    return bench, jobs, next(iter(jobs.started)), paths


def drain(bench: Workbench, run: str) -> None:
    def per_message(spark: object, message: dict, context: Context) -> None: ...

    queue = as_run(bench.queue("exports", **OPTIONS), run)
    work = MessageWork(queue, per_message, None)
    with contextlib.suppress(NotOurs, RunLost, CorruptState):
        Driver(queue, work, seconds=3600, threads=1, beats=False).drain()


@pytest.mark.parametrize("kind", ["slot", "manifest", "heartbeat", "lease", "settings"])
def test_whatever_is_forged_before_the_driver_starts_the_messages_come_to_their_end(kind):
    bench, _, run, paths = launched()
    queue = bench.queue("exports", **OPTIONS)
    bench.put(queue.keys.overrides, b'{"max_attempts": 5, "messages_per_run": 2}')
    real = bench.read(forged_key(queue, kind, run, paths))
    for forged in [HUGE, *forgeries(real, seed=4, few=FEW)]:
        bench, jobs, run, paths = launched()
        queue = bench.queue("exports", **OPTIONS)
        bench.put(forged_key(queue, kind, run, paths), forged)
        drain(bench, run)
        jobs.becomes("ended", "SUCCESS")
        watch = RunWatch(jobs, "bench")
        for _ in range(4):
            bench.clock.advance(700)
            dispatched: list[str] = []
            sweeper = bench.sweeper(queue, dispatched)
            sweeper.check_runs = watch.check
            sweeper.sweep()
            with contextlib.suppress(CorruptState):
                if dispatched and Launcher(jobs, "bench", threads=1).launch(queue, dispatched) == "started":
                    drain(bench, list(jobs.started)[-1])
                    jobs.becomes("ended", "SUCCESS")
        others = paths[1:] if kind == "lease" else paths
        states = [queue.status(path).state for path in others]
        assert all(state in ("completed", "dead") for state in states) or is_paused(queue), (forged[:300], states)


def forged_key(queue, kind, run, paths) -> str:
    return {
        "slot": queue.keys.slot(0),
        "manifest": queue.keys.manifest(run),
        "heartbeat": queue.keys.worker(run),
        "lease": queue.keys.lease(paths[0]),
        "settings": queue.keys.overrides,
    }[kind]


def is_paused(queue) -> bool:
    queue.refresh()
    return bool(queue.settings.paused)


PLAN = {"queue": "orders", "run": "r", "per_object": 10, "buckets": 3, "rows": 5, "fingerprint": "f", "priority": 1}


def test_a_forged_plan_is_corrupt_and_nothing_else():
    real = dump(PLAN)
    for forged in [HUGE, real, *forgeries(real)]:
        store = ForgedStore()
        store.put("orders/bulk/r/plan.json", forged)
        with contextlib.suppress(CorruptState):
            assert read_plan(store, "orders", "r").run == "r"


def test_a_forged_commit_of_the_archive_is_corrupt_and_nothing_else():
    part = Part(key="archive/x", queue="orders", day="2026-11-16", rows=1, bytes=2)
    real = OldCommit(version=1, parts=(part,), committed_at=AT).to_bytes("n")
    for forged in forgeries(real):
        with contextlib.suppress(CorruptState):
            OldCommit.from_bytes(forged, "archive/queue=orders/_log/0000000001.json").to_bytes("n")


def test_a_forged_record_is_a_row_or_a_problem_of_the_archive():
    store = ForgedStore()
    for forged in [HUGE, ARCHIVED, *forgeries(FULL_RECORD.to_bytes(), seed=5, few=400)]:
        written = store.put("orders/records/messages/a", forged)
        assert len(read_record(store, "orders", "orders/records/messages/a", written.etag)) == 1


def test_a_forged_journal_is_rows_or_one_problem_of_the_archive():
    store = ForgedStore()
    journal = journal_bytes(tuple(replace(FULL_RECORD, path=f"messages/@a/{n}") for n in range(2)))
    for forged in [HUGE, ARCHIVED, *forgeries(journal, seed=5, few=400)]:
        written = store.put("orders/records/@a/x.json", forged)
        rows = read_record(store, "orders", "orders/records/@a/x.json", written.etag)
        assert rows
        assert len(rows) == 1 or all(row[-1] is None for row in rows)


class Bucket:
    """As an executor sees it."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def store(self) -> MemoryStore:
        return self._store


def test_an_executor_hands_out_no_line_that_is_too_long_and_says_if_there_are_too_many():
    store = MemoryStore()
    etag = store.put("q/messages/b.ndjson", join_lines([{"n": 1}, {"n": "x" * 100}, {"n": 3}])).etag
    asked = ("messages/b.ndjson", "q/messages/b.ndjson", etag, 1, AT, [])

    found = list(read_message(Bucket(store), asked, max_bytes=20))
    assert [(row[1], row[2]) for row in found] == [(1, b'{"n":1}'), (2, None), (3, b'{"n":3}')]
    assert list(read_message(Bucket(store), asked, max_lines=1))[-1][1:3] == (-1, None)


def a_part() -> tuple[bytes, pa.Schema]:
    table = pa.table({"record_key": ["orders/records/messages/a", "b"], "record_etag": ["1", "2"]})
    target = io.BytesIO()
    pq.write_table(table, target, compression="zstd")
    return target.getvalue(), table.schema


def test_a_forged_part_of_the_archive_is_corrupt_and_nothing_else():
    real, schema = a_part()
    chance = random.Random(7)
    forged = [HUGE, b"", b"PAR1", b"PAR1PAR1", b"x" * 100, *(real[:end] for end in range(0, len(real), 29))]
    for _ in range(300):
        # In the data, not in the footer's lengths: what Parquet's own reader does with those is its authors' business.
        place = chance.randrange(4, len(real) // 3)
        forged.append(real[:place] + chance.randbytes(1) + real[place + 1 :])
    store = ForgedStore()
    store.put("archive/x", real)
    assert sum(batch.num_rows for batch in part_batches(store, "archive/x", 2, {}, schema)) == 2
    with pytest.raises(CorruptState, match="archive/x has 2 rows; the archive's table says 3"):
        list(part_batches(store, "archive/x", 3, {}, schema))
    for body in forged:
        store.put("archive/x", body)
        with contextlib.suppress(CorruptState):
            assert sum(batch.num_rows for batch in part_batches(store, "archive/x", 2, {}, schema)) == 2


class Endless(io.RawIOBase):
    """So many bytes, none of them the end of a line."""

    def __init__(self, size: int) -> None:
        self.left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        count = min(len(buffer), self.left)
        buffer[:count] = b"x" * count
        self.left -= count
        return count


def test_a_dataset_without_a_newline_is_refused_and_not_held(monkeypatch):
    monkeypatch.setattr("spark.bulk_enqueue.LINE_BYTES", 1024 * 1024)
    source = io.BytesIO(b"{}\n" + b"y" * (1024 * 1024) + b"\n")
    assert [len(line) for line, *_ in _bounded_lines("datasets/a", source)] == [2, 1024 * 1024]
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=f"datasets/a: line 1 has {2**28} bytes, at most {2**20} are read"):
            list(_bounded_lines("datasets/a", io.BufferedReader(Endless(2**28))))
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_statistics_that_nobody_can_read_are_written_anew():
    store = ForgedStore()
    for key in (LATEST_STATISTICS, STATISTICS_STATE, "analytics/hours/queue=orders/day=2026-11-16/hours.ndjson"):
        store.put(key, ARCHIVED)

    assert read_state(store) == {}
    assert publish(store, {"computed_at": "2026-11-16T00:00:00.000Z"})
    assert merge_lines(store, "orders", "2026-11-16", []) == []
