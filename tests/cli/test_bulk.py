"""Bulk runs from the command line: what they did, and what they could not enqueue."""

from __future__ import annotations

import json

from s3queue.documents.bulk_run import RejectedRow

REPORT = {"queue": "orders", "run": "november", "rows": 7, "batches": 2, "messages": 4, "added": 1}


def put_runs(queue) -> None:
    store, keys = queue.store, queue.keys
    report = REPORT | {"rejected": {"not JSON": 2, "too large": 1}}
    store.put(keys.bulk("november", "done.json"), json.dumps(report).encode())
    store.put(keys.bulk("october", "00000.started"), b"{}")
    store.put(keys.bulk("written", "done.json"), json.dumps({"run": "written", "batches": 1, "messages": 3}).encode())
    rows = [
        RejectedRow(reason="not JSON", body=b"bad\x1b[31m", source="datasets/a.csv", row=7),
        RejectedRow(reason="not JSON", body=b"\xff", source=None, row=None),
    ]
    store.put(keys.bulk("november", "rejected/00000-00000.ndjson"), b"".join(row.to_bytes() for row in rows))
    last = RejectedRow(reason="too large", body=b"x" * 500, source="datasets/b", row=1)
    store.put(keys.bulk("november", "rejected/00003-00000.ndjson"), last.to_bytes())


def test_runs_are_listed_with_what_they_did(cli):
    cli("create", "orders")
    assert "no bulk run" in cli("bulk", "list", "orders").err
    put_runs(cli.queue())

    found = {one["run"]: one for one in cli("bulk", "list", "orders", "--json").json}

    assert found["november"] == {
        "run": "november",
        "state": "done",
        "rows": 7,
        "batches": 2,
        "messages": 4,
        "rejected": {"not JSON": 2, "too large": 1},
    }
    assert found["october"]["state"] == "unfinished"
    assert (found["written"]["rows"], found["written"]["rejected"]) == (None, {})
    assert "unfinished" in cli("bulk", "list", "orders").out


def test_rejected_rows_are_shown_with_where_and_why(cli):
    cli("create", "orders")
    put_runs(cli.queue())

    shown = cli("bulk", "rejected", "orders", "november")

    assert "datasets/a.csv" in shown.out
    assert "too large" in shown.out
    assert "\x1b" not in shown.out
    assert "x" * 100 not in shown.out
    found = cli("bulk", "rejected", "orders", "november", "--json").json
    assert [(row["source"], row["row"], row["reason"], row["body"][:4]) for row in found] == [
        ("datasets/a.csv", 7, "not JSON", "bad\x1b"),
        (None, None, "not JSON", "\ufffd"),
        ("datasets/b", 1, "too large", "xxxx"),
    ]
    few = cli("bulk", "rejected", "orders", "november", "--limit", "2")
    assert "there are more" in few.err
    assert "has rejected nothing" in cli("bulk", "rejected", "orders", "october").err
    assert "RUN is missing" in cli("bulk", "rejected", "orders", code=2).err


def test_what_is_no_report_and_no_row_is_named(cli):
    cli("create", "orders")
    store, keys = cli.queue().store, cli.queue().keys
    store.put(keys.bulk("x", "rejected/00000-00000.ndjson"), b'{"reason": 7}\n')
    assert "orders/bulk/x/rejected/00000-00000.ndjson" in cli("bulk", "rejected", "orders", "x", code=1).err
    for garbage in (
        b"garbage",
        b"[]",
        b'{"run":"x","batches":-1,"messages":1}',
        b'{"run":"x","batches":1,"messages":1,"rejected":[]}',
    ):
        store.put(keys.bulk("x", "done.json"), garbage)
        listed = cli("bulk", "list", "orders")
        assert "orders/bulk/x/done.json" in listed.err
        assert "unreadable" in listed.out


def test_a_report_that_cannot_be_read_hides_no_other_run(cli):
    cli("create", "orders")
    put_runs(cli.queue())
    cli.queue().store.put(cli.queue().keys.bulk("a-first", "done.json"), b"garbage")

    found = {one["run"]: one for one in cli("bulk", "list", "orders", "--json").json}

    assert {run: one["state"] for run, one in found.items()} == {
        "a-first": "unreadable",
        "november": "done",
        "october": "unfinished",
        "written": "done",
    }
    assert found["a-first"]["messages"] is None
