"""What the API does with single messages: release."""

from __future__ import annotations

from s3queue.dashboard.api import build
from support.api_calls import Ask, asking
from support.workbench import Workbench

ORDERS = "/api/queues/orders"


def test_a_message_is_taken_from_its_worker_which_is_told(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue(worker_id="lost")
    queue.configure(max_attempts=3)
    path = queue.enqueue({})
    at = f"{ORDERS}/message/release"
    assert ask("POST", at, query={"path": path}).status == 422, "nobody holds it"
    queue.claim(path)
    answer = ask("POST", at, query={"path": path})
    assert (answer.status, answer.body["worker"], answer.body["attempt"]) == (200, "lost", 1)
    assert ask("GET", f"{ORDERS}/message", query={"path": path}).body["state"] == "waiting"
    assert [claim.attempt for claim in queue.claim_next()] == [1]
    assert ask("POST", at, query={"path": "messages/none"}).status == 404


def test_a_reader_releases_nothing(bench: Workbench) -> None:
    queue = bench.queue()
    queue.configure(max_attempts=3)
    path = queue.enqueue({})
    queue.claim(path)
    ask = asking(build(bench.store, role="reader"))
    assert ask("POST", f"{ORDERS}/message/release", query={"path": path}).status == 403
    assert queue.status(path).state == "processing"
