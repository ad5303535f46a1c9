"""The demo's own judgement: it must notice what is missing, wrong or forged. Needs no stack."""

from __future__ import annotations

import http.client
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest

from infra.local.demo.accounts import Accounts
from infra.local.demo.messages import Sent, crowd, slow_webhook
from infra.local.demo.receiver import Receiver
from queues import webhooks
from s3queue.processing import Processor
from s3queue.queue import Queue
from s3queue.wiring import connect

SECRET = "shared"


@pytest.fixture
def queue(unique: str) -> Queue:
    return connect(f"memory://{unique}/emails")


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
