"""The archive from the command line, on a real S3 server: shown, compacted, cleared, converted."""

from __future__ import annotations

import re
import sys

import pytest

from s3queue.archive.table import ArchiveTable
from s3queue.connect import open_store
from s3queue.store import ObjectStore
from support.archived_files import put_old_commit, put_part
from support.cli_calls import Cli
from support.finished_messages import NOON, keys_under, put_records
from support.s3_servers import fresh_bucket, s3_client


@pytest.fixture
def bucket(seaweedfs_endpoint, monkeypatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs_endpoint)
    return fresh_bucket(s3_client(seaweedfs_endpoint))


@pytest.fixture
def cli(bucket) -> Cli:
    return Cli(f"s3://{bucket}")


@pytest.fixture
def store(bucket) -> ObjectStore:
    return open_store(f"s3://{bucket}")[0]


def add(store: ObjectStore, bucket: str, queue: str, *names: str, **more) -> None:
    table = ArchiveTable(bucket)
    seen = table.prepared()
    part = put_part(store, queue, names, version=seen.commits(queue) + 1, **more)
    table.commit(seen, queue, [part], committed_at=NOON)


def test_records_that_nobody_archives_are_told_of_before_they_expire(cli, store, monkeypatch):
    put_records(store, "orders", 3)
    # As if more than half of their five days were over.
    monkeypatch.setattr("s3queue.archive.expiry.LATE", -1.0)
    said = cli("archive", "show", "orders").err
    # By S3's seconds: of a record that was stored in this one, all of them are left.
    assert re.search(r"orders: 3 records are not archived, and the first expires in (5 d|4 d 23 h) ", said)
    assert "run the archive job" in said


def test_an_operator_sees_files_rows_versions_and_what_waits(cli, bucket, store):
    put_records(store, "orders", 3)
    empty = cli("archive", "show")
    assert "there is no table" in empty.err
    assert cli("archive", "show", "--json").json["version"] is None
    etags = keys_under(store, "orders/records/")
    add(store, bucket, "orders", "m00000", record_etag=etags["orders/records/messages/m00000"])
    # The same name with another outcome is another record.
    add(store, bucket, "orders", "m00001", record_etag="other")
    add(store, bucket, "expired", "a", "b", day="2026-11-01")

    found = cli("archive", "show", "--json").json

    orders, expired = sorted(found["queues"], key=lambda one: one["queue"], reverse=True)
    assert (orders["queue"], orders["files"], orders["rows"], orders["days_in_pieces"]) == ("orders", 2, 2, 1)
    assert orders["waiting"]["objects"] == 2
    assert orders["waiting"]["oldest_at"]
    assert 4.9 * 86400 < orders["waiting"]["expires_in_seconds"] <= 5 * 86400
    assert expired["waiting"]["expires_in_seconds"] is None
    assert (expired["rows"], expired["first_day"], expired["waiting"]["objects"]) == (2, "2026-11-01", 0)
    assert found["version"] == 3
    assert [one["queue"] for one in found["versions"]] == ["expired", "orders", "orders", ""]
    shown = cli("archive", "show", "orders")
    assert "2026-11-16" in shown.out
    # S3's dates have whole seconds: the last one may not be over.
    assert "in 4 d 23 h" in shown.out or "in 5 d" in shown.out
    assert "run the archive job" not in shown.err
    assert "has version 3" in shown.err
    assert cli("archive", "show", "orders", "--no-waiting", "--json").json["queues"][0]["waiting"] is None


def test_files_are_merged_and_what_is_unused_is_deleted_after_a_week(cli, bucket, store):
    for name in "abc":
        add(store, bucket, "orders", name)
    add(store, bucket, "emails", "x")

    assert "3 files became 1" in cli("archive", "compact", "orders").out
    assert cli("archive", "compact", "--json").json == {"removed": 0, "added": 0}
    assert cli("archive", "show", "orders", "--json").json["queues"][0]["files"] == 1
    assert cli("archive", "vacuum", "--json").json == {"deleted": [], "dry_run": False}
    assert "0 files would be deleted" in cli("archive", "vacuum", "--dry-run").out
    assert cli("archive", "vacuum", "--days", "1", code=2).err
    assert len(keys_under(store, "archive/queue=orders/day=")) == 4


def test_an_old_archive_is_shown_as_such_and_converted(cli, bucket, store):
    for queue in ("emails", "orders"):
        put_old_commit(store, queue, 1, [put_part(store, queue, ["a", "b"])])
    store.put("archive/queue=NOT A QUEUE/_log/1.json", b"x")

    assert "s3queue archive convert orders" in cli("archive", "show", "orders").err
    assert "1 commit of 1 queue in the table" in cli("archive", "convert", "orders").out
    assert cli("archive", "convert", "--json").json == [
        {"queue": "emails", "commits": 1},
        {"queue": "orders", "commits": 0},
    ]
    assert "nothing to convert" in cli("archive", "convert").out
    assert [one["rows"] for one in cli("archive", "show", "--json").json["queues"]] == [2, 2]


def test_a_command_that_cannot_work_says_why(cli, monkeypatch):
    assert "a bucket in memory has no archive" in cli("archive", "show", url="memory://x", code=2).err
    monkeypatch.setitem(sys.modules, "deltalake", None)
    for name in ("show", "compact", "vacuum", "convert"):
        assert "the archive needs deltalake: pip install 's3queue[archive]'" in cli("archive", name, code=2).err
