"""Search, live tail, edit and replay, and pages for people, as the API offers them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from s3queue.dashboard import live_tail, search
from s3queue.dashboard.api import build
from s3queue.keys import Keys
from support.api_calls import Ask, asking
from support.workbench import Workbench

AT = "/api/queues/orders/search"


@pytest.fixture
def dead(bench: Workbench) -> list[str]:
    """Six dead letters: two errors, payloads with a customer."""
    queue = bench.queue("orders", max_attempts=1)
    paths = []
    for number in range(6):
        body = {"customer": {"id": number, "name": f"Ada {number}"}, "items": [{"sku": f"s-{number}"}]}
        path = queue.enqueue(body, name=f"m{number}")
        queue.fail(queue.claim(path), ValueError(f"bad order {number}") if number % 2 else TimeoutError("bank away"))
        paths.append(path)
    return paths


def found(answer: Any) -> list[str]:
    assert answer.status == 200, answer.body
    return [row["path"] for row in answer.body["messages"]]


def test_dead_letters_are_found_by_a_part_of_their_error(ask: Ask, dead: list[str]) -> None:
    assert found(ask("GET", AT, query={"error": "BANK"})) == dead[::2]
    assert found(ask("GET", AT, query={"error": "valueerror"})) == dead[1::2]


@pytest.mark.parametrize(
    ("field", "value", "which"),
    [
        ("customer.id", "3", [3]),
        ("customer.name", "ada 4", [4]),
        ("items.sku", "s-5", [5]),
        ("customer", "", [0, 1, 2, 3, 4, 5]),
        ("customer.id", "33", []),
        ("nothing", "", []),
    ],
)
def test_dead_letters_are_found_by_a_field_of_their_payload(
    ask: Ask, dead: list[str], field: str, value: str, which: list[int]
) -> None:
    answer = ask("GET", AT, query={"field": field, "value": value})
    assert found(answer) == [dead[number] for number in which]
    assert (answer.body["looked_at"], answer.body["complete"], answer.body["unread"]) == (6, True, 0)


def test_error_and_field_together_narrow_it(ask: Ask, dead: list[str]) -> None:
    answer = ask("GET", AT, query={"error": "bank", "field": "customer.id", "value": "2"})
    assert found(answer) == [dead[2]]
    assert answer.body["reads"] == 6 + 3, "only payloads of those whose error fits are read"


def test_a_search_stops_at_its_bound_says_so_and_goes_on(
    ask: Ask, dead: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST_READS", 4)
    monkeypatch.setattr(search, "PORTION", 2)
    asked = {"field": "customer.id", "value": "5"}
    first = ask("GET", AT, query=asked)
    assert (found(first), first.body["complete"], first.body["looked_at"]) == ([], False, 2)
    rest: list[str] = []
    cursor = first.body["next_cursor"]
    while cursor is not None:
        answer = ask("GET", AT, query=asked | {"cursor": cursor})
        rest += found(answer)
        cursor = answer.body["next_cursor"]
    assert rest == [dead[5]]


def test_a_batch_is_found_by_one_of_its_lines_and_what_is_no_json_is_counted(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue("orders")
    (batch,) = queue.enqueue_many([{"id": 1}, {"id": 2}])
    queue.enqueue("not json", name="text")
    queue.enqueue(json.dumps({"id": 2, "pad": "x" * 70_000}), name="large")
    answer = ask("GET", AT, query={"state": "pending", "field": "id", "value": "2"})
    assert found(answer) == [batch]
    assert answer.body["unread"] == 2


def test_the_second_letter_of_a_batch_is_searched_line_by_line_too(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue("orders", max_attempts=1)

    def always_fails(body: object) -> None:
        raise ValueError(body)

    for number in (1, 2):
        bench.put("orders/messages/a.ndjson", b'{"id": %d}\n{"id": 0}\n' % number)
        bench.clock.advance(5)
        bench.settle(queue, always_fails)
    first, second = bench.keys("orders/dead/")
    assert second.startswith(f"{first}~")
    answer = ask("GET", AT, query={"field": "id", "value": "2"})
    assert (found(answer), answer.body["unread"]) == ([second.removeprefix("orders/dead/")], 0)


def test_messages_that_wait_are_found_by_error(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue("orders")
    path = queue.enqueue({"id": 1})
    queue.fail(queue.claim(path), "the bank is away", retry_after=60)
    assert found(ask("GET", AT, query={"state": "waiting", "error": "bank"})) == [path]
    assert found(ask("GET", AT, query={"state": "waiting", "error": "bank", "field": "id", "value": "1"})) == [path]


def test_a_search_for_nothing_finds_all_and_what_was_not_tried_has_no_error(
    bench: Workbench, ask: Ask, dead: list[str]
) -> None:
    assert found(ask("GET", AT)) == dead
    bench.queue("orders").enqueue("x")
    assert found(ask("GET", AT, query={"state": "pending", "error": "x"})) == []


def test_a_reader_searches_errors_but_no_payloads(bench: Workbench, dead: list[str]) -> None:
    ask = asking(build(bench.store, role="reader"))
    assert len(found(ask("GET", AT, query={"error": "bank"}))) == 3
    assert ask("GET", AT, query={"field": "customer.id"}).status == 403


def test_the_tail_tells_what_became_of_messages(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue("orders", worker_id="w", max_attempts=2)
    old = queue.enqueue("x", name="old")
    queue.complete(queue.claim(old))
    bench.clock.advance(600)
    done, fails, runs = (queue.enqueue("x", name=name) for name in ("done", "fails", "runs"))
    queue.complete(queue.claim(done))
    queue.fail(queue.claim(fails), "no")
    queue.claim(runs)
    told = ask("GET", "/api/queues/orders/tail").body
    states = {event["path"]: event["state"] for event in told["events"]}
    assert states == {done: "completed", fails: "waiting", runs: "processing"}
    assert next(event for event in told["events"] if event["path"] == fails)["error"].endswith("no")
    bench.clock.advance(5)
    later = ask("GET", "/api/queues/orders/tail", query={"after": told["at"]}).body
    assert {event["path"] for event in later["events"]} <= set(states), "S3 dates by the second: some may repeat"
    bench.clock.advance(5)
    assert ask("GET", "/api/queues/orders/tail", query={"after": later["at"]}).body["events"] == []
    assert ask("GET", "/api/queues/orders/tail", query={"after": "yesterday"}).status == 422


def test_a_tail_of_too_many_events_says_how_many_it_missed(
    bench: Workbench, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_tail, "MOST_READ", 3)
    queue = bench.queue("orders")
    for _ in range(5):
        queue.complete(queue.claim(queue.enqueue("x")))
    told = ask("GET", "/api/queues/orders/tail").body
    assert (len(told["events"]), told["missed"]) == (3, 2)


def test_a_letter_is_edited_and_replayed_once(bench: Workbench, ask: Ask, dead: list[str]) -> None:
    bench.clock.advance(5)
    answer = ask("POST", "/api/queues/orders/dead/edit", body={"path": dead[1], "body": {"customer": 7}})
    assert (answer.status, answer.body) == (200, {"path": dead[1]})
    assert json.loads(bench.read(Keys("orders").message(dead[1]))) == {"customer": 7}
    again = ask("POST", "/api/queues/orders/dead/edit", body={"path": dead[1], "body": {"customer": 8}})
    assert again.status == 404
    assert (
        asking(build(bench.store, role="reader"))(
            "POST", "/api/queues/orders/dead/edit", body={"path": dead[2], "body": ""}
        ).status
        == 403
    )


def test_people_get_a_page_and_programs_get_json(ask: Ask) -> None:
    page = ask("GET", "/nowhere", accept="text/html,*/*")
    assert page.status == 404
    assert page.headers["content-type"].startswith("text/html")
    assert "There is nothing at this address." in page.body
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert ask("GET", "/nowhere").body["error"] == "NoSuchRoute"
    assert ask("GET", "/api/nowhere", accept="text/html").body["error"] == "NoSuchRoute", "the page's own requests"


def test_when_messages_with_names_of_their_own_came_is_read_from_their_records(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue("orders")
    for number in range(3):
        queue.complete(queue.claim(queue.enqueue("x", name=f"own-{number}")))
        bench.clock.advance(60)
    flow = ask("GET", "/api/queues/orders/flow").body
    assert sum(minute["entered"] for minute in flow["minutes"]) == 3
    assert flow["unknown_entries"] == 0


@pytest.mark.parametrize("state", ["waiting", "completed", "cancelled", "pending"])
def test_a_search_keeps_its_bound_where_nothing_is_in_its_state(
    bench: Workbench, ask: Ask, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(search, "MOST_READS", 20)
    monkeypatch.setattr(search, "MOST_PORTIONS", 4)
    monkeypatch.setattr(search, "PORTION", 5)
    queue = bench.queue("orders", max_attempts=1)
    claims = [queue.claim(queue.enqueue({"n": number})) for number in range(120)]
    if state in ("completed", "cancelled"):
        for claim in claims:
            assert claim
            # Dead of an error, or completed: never what is looked for.
            queue.complete(claim) if state == "cancelled" else queue.fail(claim, ValueError("no"))
    bench.store.take()
    read: list[str] = []
    bench.around = lambda operation, key, perform: (read.append(operation), perform())[1]
    answer = ask("GET", AT, query={"state": state, "field": "n"})
    bench.around = None
    assert found(answer) == []
    assert not answer.body["complete"]
    assert len(read) < 60


def test_a_payload_nested_deeply_does_not_fail_a_search(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue("orders")
    # A parser goes as deep as Python does; who writes it as text again, or looks through it, not quite.
    for depth in range(940, 1000):
        queue.enqueue(b'{"n":' + b'{"n":' * depth + b"1" + b"}" * depth + b"}", name=f"0-{depth}")
        queue.enqueue(b"[" * depth + b"]" * depth, name=f"1-{depth}")
    path = queue.enqueue({"n": 1}, name="2-real")
    paths: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = ask("GET", AT, query={"state": "pending", "field": "n", "value": "1", "cursor": cursor})
        paths, cursor = paths + found(answer), answer.body["next_cursor"]
    assert paths == [path]
