"""The demo's own judgement: it must notice what is missing, wrong or forged. Needs no stack."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest

from infra.local.demo import exports
from infra.local.demo.accounts import Accounts
from infra.local.demo.messages import Sent, crowd, slow_webhook
from infra.local.demo.receiver import Receiver
from queues import webhooks
from queues.exports import Export
from s3queue.connect import connect
from s3queue.documents.run_documents import Manifest
from s3queue.queue import Queue
from s3queue.spark_runs.slots import RunStore
from s3queue.worker.processor import Processor

SECRET = "shared"


@pytest.fixture
def queue(unique: str) -> Queue:
    return connect(f"memory://{unique}/emails")


@pytest.fixture
def heavy(unique: str) -> Queue:
    return connect(f"memory://{unique}/exports")


def sent(queue: Queue, name: str, **expected: object) -> Sent:
    path = queue.enqueue({"to": name}, name=name)
    return Sent(kind="emails", queue="emails", path=path, body=b"{}", **expected)  # type: ignore[arg-type]


def test_the_demo_sends_what_its_issue_asks_for() -> None:
    messages = [slow_webhook("http://127.0.0.1"), *crowd("http://127.0.0.1", datetime.now(UTC))]
    counts = {
        queue: sum(one.count for one in messages if one.queue == queue)
        for queue in ("emails", "webhooks", "thumbnails")
    }
    assert counts == {"emails": 200 + 20 + 1000, "webhooks": 20, "thumbnails": 20}
    assert sum(one.ending == "dead" for one in messages) == 3
    assert len({one.key for one in messages}) == len(messages)


def test_the_heavy_ones_are_thirty_of_which_two_cannot_be_done() -> None:
    asked = exports.exports()
    requests = [Export.model_validate_json(one.sent.body) for one in asked]
    kept = [key for key, _ in exports.datasets()]

    assert len({one.sent.key for one in asked}) == len({request.destination for request in requests}) == 30
    assert sum(one.sent.ending == "dead" for one in asked) == sum(one.rows is None for one in asked) == 2
    # An export of nothing would be right without anybody having done anything.
    assert all(one.rows for one in asked if one.rows is not None)
    assert {source for request in requests for source in request.sources} == {"datasets/orders/", *kept[2:]}


def worked(queue: Queue, asked: Sequence[exports.Export], *, runs: int = 1) -> dict[str, bool]:
    """Do them as Spark would, and whether the demo believes in files and runs."""
    for one in asked:
        claim = queue.claim(queue.enqueue({}, name=one.sent.path.removeprefix("messages/")))
        assert claim
        if one.rows is None:
            queue.fail(claim, "no", dead=True)
            continue
        key = f"analytics/exports/{one.sent.path}/part-0.json"
        queue.store.put(key, b"".join(json.dumps(row).encode() + b"\n" for row in one.rows))
        queue.complete(claim, {"files": [key], "rows": len(one.rows)})
    book, counts = RunStore(queue), {"completed": len(asked) - 2, "dead": 2}
    for number in range(runs):
        manifest = Manifest(
            run=f"run-{number}",
            slot=0,
            state="closed",
            opened_at=datetime.now(UTC),
            counts=counts if number == 0 else {},
        )
        book.write_manifest(manifest, None)
    return believed(queue, exports.exports())


def believed(queue: Queue, asked: Sequence[exports.Export]) -> dict[str, bool]:
    records = Accounts({"exports": queue}, [one.sent for one in asked]).records
    files, runs = exports.checks(queue, asked, records)
    return {"files": files.is_true, "runs": runs.is_true}


def test_heavy_messages_are_believed_if_their_files_hold_what_was_asked_for(heavy: Queue) -> None:
    assert worked(heavy, exports.exports(), runs=2) == {"files": True, "runs": True}


@pytest.mark.parametrize("wrong", ["a row too many", "a row too few", "another value"])
def test_a_file_that_holds_something_else_is_noticed(heavy: Queue, wrong: str) -> None:
    asked = exports.exports()
    rows = asked[3].rows
    assert rows
    others = {
        "a row too many": [*rows, rows[0]],
        "a row too few": rows[1:],
        "another value": [rows[0] | {"page": "other"}, *rows[1:]],
    }
    asked[3] = replace(asked[3], rows=others[wrong])
    assert worked(heavy, asked) == {"files": False, "runs": True}


def test_a_file_that_is_not_there_is_noticed(heavy: Queue) -> None:
    asked = exports.exports()
    worked(heavy, asked)
    heavy.store.delete(f"analytics/exports/{asked[3].sent.path}/part-0.json")
    assert believed(heavy, asked) == {"files": False, "runs": True}


def test_a_run_for_every_message_is_noticed(heavy: Queue) -> None:
    assert worked(heavy, exports.exports(), runs=3) == {"files": True, "runs": False}


def test_runs_that_did_less_than_all_are_noticed(heavy: Queue) -> None:
    assert worked(heavy, exports.exports()[:-1])["runs"] is False


def test_a_message_without_a_record_is_missing(queue: Queue) -> None:
    done, lost = sent(queue, "done"), sent(queue, "lost")
    claim = queue.claim(done.path)
    assert claim
    queue.complete(claim)

    accounts = Accounts({"emails": queue}, [done, lost])

    assert (accounts.totals(), accounts.missing, accounts.is_balanced) == ((2, 1, 0), 1, False)


def test_a_message_that_died_and_should_not_have_is_noticed(queue: Queue) -> None:
    one = sent(queue, "done", ending="completed")
    claim = queue.claim(one.path)
    assert claim
    queue.fail(claim, "no", dead=True)

    accounts = Accounts({"emails": queue}, [one])

    assert (accounts.totals(), accounts.missing, accounts.is_balanced) == ((1, 0, 1), 0, False)


def test_the_receiver_takes_what_the_queue_signs_and_nothing_else(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver(SECRET).listening() as receiver:
        path = queue.enqueue({"url": f"{receiver.url}/orders", "payload": {"order": 5}})
        monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
        monkeypatch.setenv("WEBHOOK_ALLOW_LOCAL", "true")
        assert Processor(queue=queue, definition=webhooks.queue).run(path) == "completed"

        connection = http.client.HTTPConnection(urlsplit(receiver.url).netloc, timeout=5)
        connection.request("POST", "/orders", b'{"order": 6}', {"webhook-id": "forged"})
        assert connection.getresponse().status == 401
        connection.close()

    assert (receiver.delivered(), receiver.forged) == ({5}, 1)
