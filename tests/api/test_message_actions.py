"""What the API does with single messages: lists them by state, retries, releases, replays elsewhere."""

from __future__ import annotations

import pytest

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


def test_messages_of_every_state_are_listed_a_page_at_a_time(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue(max_attempts=1)
    queue.configure(max_attempts=1)
    cancelled = [queue.enqueue({}, name=f"c{number}") for number in range(3)]
    dead = queue.enqueue({}, name="d")
    for path in cancelled:
        queue.cancel(path)
    queue.fail(queue.claim(dead), ValueError("bad order"))
    at = f"{ORDERS}/messages"

    page = ask("GET", at, query={"state": "cancelled", "limit": 2}).body
    rest = ask("GET", at, query={"state": "cancelled", "limit": 2, "cursor": page["next_cursor"]}).body

    assert [row["path"] for row in (*page["messages"], *rest["messages"])] == cancelled
    assert rest["next_cursor"] is None
    (row,) = ask("GET", at, query={"state": "dead", "prefix": "d"}).body["messages"]
    assert (row["path"], row["state"]) == (dead, "dead")
    assert ask("GET", at, query={"state": "dead", "prefix": "x"}).body["messages"] == []
    assert ask("GET", at, query={"state": "lost"}).status == 422


def test_a_message_that_waits_is_tried_now(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue()
    queue.configure(max_attempts=3)
    path = queue.enqueue({})
    at = f"{ORDERS}/message/retry"
    assert ask("POST", at, query={"path": path}).status == 422, "it does not wait"
    queue.fail(queue.claim(path), "away", retry_after=3600)
    answer = ask("POST", at, query={"path": path})
    assert (answer.status, answer.body["attempts_left"], answer.body["failure"]["message"]) == (200, 2, "away")
    assert [claim.attempt for claim in queue.claim_next()] == [2]
    assert ask("POST", at, query={"path": "messages/none"}).status == 404


def died(bench: Workbench, *errors: str) -> list[str]:
    queue = bench.queue(max_attempts=1)
    paths = []
    for number, error in enumerate(errors):
        paths.append(queue.enqueue({"n": number}, name=f"m{number}"))
        queue.fail(queue.claim(paths[-1]), type(error, (Exception,), {})("x"))
    return paths


def test_dead_letters_go_to_another_queue(bench: Workbench, ask: Ask) -> None:
    one, two, other = died(bench, "Away", "Bad", "Bad")
    by_hand = bench.queue("by-hand")
    by_hand.configure(max_attempts=3)
    at = f"{ORDERS}/dead/replay"
    assert ask("POST", at, body={"path": one, "to": "by-hand"}).body["replayed"] == 1
    assert ask("POST", at, body={"error_type": "Bad", "to": "by-hand"}).body["replayed"] == 2
    assert bench.keys("orders/dead/") == bench.keys("orders/messages/") == []
    assert bench.keys("by-hand/messages/") == [f"by-hand/{path}" for path in (one, two, other)]


@pytest.mark.parametrize(("to", "status"), [("nowhere", 404), ("../x", 422), ("", 422)])
def test_a_queue_that_is_none_gets_no_letter(bench: Workbench, ask: Ask, to: str, status: int) -> None:
    (path,) = died(bench, "Bad")
    assert ask("POST", f"{ORDERS}/dead/replay", body={"path": path, "to": to}).status == status
    assert bench.keys("orders/dead/") == [f"orders/dead/{path}"]


def test_of_a_batch_with_several_errors_no_line_goes_along_unasked(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue(max_attempts=1)
    bench.queue("by-hand").configure(max_attempts=3)
    (path,) = queue.enqueue_many(["Away", "Bad"])

    def handle(body: str) -> None:
        raise type(body, (Exception,), {})("x")

    bench.processor(queue, handle).run(path)
    answer = ask("POST", f"{ORDERS}/dead/replay", body={"error_type": "Bad", "to": "by-hand"}).body
    assert (answer["replayed"], [one["error"] for one in answer["failed"]]) == (0, ["InvalidRequest"])
    assert bench.keys("by-hand/messages/") == []
    letter = f"{path}.lines"
    assert ask("POST", f"{ORDERS}/dead/replay", body={"path": letter, "to": "by-hand"}).status == 200
    assert len(bench.keys("by-hand/messages/")) == 1
