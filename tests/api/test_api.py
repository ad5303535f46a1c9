"""The REST API: the library's words and numbers over HTTP, and a refusal that says what to do for everything else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from s3queue import AccessDenied, Breaker, QueueError, Unavailable
from s3queue.dashboard.api import build
from s3queue.dashboard.overview import overview
from s3queue.paths import named_at
from s3queue.settings import QueueSettings
from support.api_calls import Answer, Ask, asking
from support.sample_bucket import working_hour
from support.workbench import Workbench

ORDERS = "/api/queues/orders"


def test_it_says_what_the_library_says(bench: Workbench, ask: Ask) -> None:
    working_hour(bench)
    said = {queue["name"]: queue for queue in ask("GET", "/api/queues").body["queues"]}
    for name, queue in said.items():
        judged = overview(bench.memory, name).to_json()
        assert {field: queue[field] for field in judged} == judged
    assert ask("GET", "/api/queues").body["verdict"]["reason"].startswith("exports is stuck: the oldest message")


def test_it_tells_what_the_sweeper_rescued_and_that_nobody_knows_before_a_sweep(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue()
    queue.enqueue(b"its event is lost")
    assert ask("GET", "/api/queues").body["queues"][0]["stats"]["rescued"] is None

    bench.clock.advance(60)
    bench.sweeper(queue).sweep()

    assert ask("GET", "/api/queues").body["queues"][0]["stats"]["rescued"] == 1


def test_an_empty_bucket_is_no_error(ask: Ask) -> None:
    answer = ask("GET", "/api/queues")
    assert (answer.status, answer.body["verdict"]["health"]) == (200, "idle")


def test_a_queue_that_was_not_deployed_here_is_judged_by_its_published_settings(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue(paused=True)
    queue.publish_settings()
    queue.enqueue("x")
    (listed,) = ask("GET", "/api/queues").body["queues"]
    assert (listed["health"], listed["paused"]) == ("paused", True)


def test_a_message_is_enqueued_found_and_read(bench: Workbench, ask: Ask) -> None:
    bench.queue().configure(max_attempts=3)
    sent = ask("POST", f"{ORDERS}/messages", body={"body": {"n": 1}, "priority": 200, "metadata": {"from": "Zoë"}})
    assert sent.status == 201
    path = sent.body["path"]
    assert path.startswith("messages/p200/")
    assert [row["path"] for row in ask("GET", f"{ORDERS}/messages").body["messages"]] == [path]
    life = ask("GET", f"{ORDERS}/message", query={"path": path, "body": 1}).body
    assert (life["state"], life["priority"]) == ("pending", 200)
    assert (life["body"]["text"], life["body"]["metadata"]) == ('{"n":1}', {"from": "Zoë"})


def test_a_breaker_is_shown_and_forced(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue(breaker=Breaker(failures=1))
    claim = queue.claim(queue.enqueue(b"{}"))
    assert claim
    queue.fail(claim, ConnectionError("down"))

    shown = ask("GET", f"{ORDERS}/breaker").body
    assert (shown["state"], shown["forced"], shown["error"]) == ("open", False, "ConnectionError: down")
    (listed,) = ask("GET", "/api/queues").body["queues"]
    assert (listed["breaker"], listed["health"]) == ("open", "failing")
    assert ask("POST", f"{ORDERS}/breaker", body={"state": "closed"}).body["forced"]
    assert ask("GET", ORDERS).body["breaker"] == "forced closed"
    assert ask("POST", f"{ORDERS}/breaker", body={"state": "ajar"}).status == 422
    assert not ask("POST", f"{ORDERS}/breaker", body={"state": "auto"}).body["forced"]


def test_a_payload_is_shown_only_when_asked_for(bench: Workbench, ask: Ask) -> None:
    path = bench.queue().enqueue(b"\xff\x00secret")
    assert ask("GET", f"{ORDERS}/message", query={"path": path}).body["body"] is None
    shown = ask("GET", f"{ORDERS}/message", query={"path": path, "body": 1}).body["body"]
    assert (shown["text"], shown["base64"]) == (None, "/wBzZWNyZXQ=")


def test_sending_twice_with_one_dedup_id_enqueues_once(bench: Workbench, ask: Ask) -> None:
    bench.queue().configure(max_attempts=3)
    first, second = (ask("POST", f"{ORDERS}/messages", body={"body": "x", "dedup_id": "42"}) for _ in range(2))
    assert (first.status, first.body["created"]) == (201, True)
    assert (second.status, second.body["created"]) == (200, False)
    assert first.body["path"] == second.body["path"]
    assert bench.queue().stats().pending == 1


def test_a_dedup_id_that_counts_for_a_while_enqueues_once_also_after_completion(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue()
    queue.configure(max_attempts=3)
    sent = {"body": "x", "dedup_id": "42", "dedup_for_seconds": 300}
    first = ask("POST", f"{ORDERS}/messages", body=sent)
    queue.complete(queue.claim(first.body["path"]))
    second = ask("POST", f"{ORDERS}/messages", body=sent)
    assert [(one.status, one.body) for one in (first, second)] == [
        (201, {"path": first.body["path"], "created": True}),
        (200, {"path": first.body["path"], "created": False}),
    ]
    assert ask("POST", f"{ORDERS}/messages", body={"body": "x", "dedup_for_seconds": 300}).status == 422


def test_a_message_of_a_group_goes_to_its_partition(bench: Workbench, ask: Ask) -> None:
    bench.queue().configure(max_attempts=3)
    sent = [ask("POST", f"{ORDERS}/messages", body={"body": n, "group": "a/b"}) for n in range(2)]
    assert [one.status for one in sent] == [201, 201]
    paths = [one.body["path"] for one in sent]
    times = [named_at(path) for path in paths]
    assert times == sorted(times), "each call names its message by the time"
    assert all(path.startswith("messages/@a%2Fb/") for path in paths)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"priority": 9}, "no priority and no delay"),
        ({"delay_seconds": 60}, "no priority and no delay"),
        ({"due_at": "2100-01-01T00:00:00Z"}, "no priority and no delay"),
        ({"group": "é" * 43}, "is too long: up to 42 characters"),
        ({"group": "x" * 513}, "at most 512 characters"),
    ],
)
def test_what_a_group_cannot_have_is_refused(bench: Workbench, ask: Ask, more: dict[str, Any], said: str) -> None:
    bench.queue().configure(max_attempts=3)
    answer = ask("POST", f"{ORDERS}/messages", body={"body": "x", "group": "customer-42", **more})
    assert answer.status == 422
    (problem,) = answer.body["fields"]
    assert problem["field"] == "group"
    assert said in problem["message"]
    assert bench.queue().stats().total == 0


@pytest.mark.parametrize("group", ["𝄞" * 42, " " * 170, "x" * 512])
def test_the_longest_groups_fit_into_a_key(bench: Workbench, ask: Ask, group: str) -> None:
    bench.queue().configure(max_attempts=3)
    assert ask("POST", f"{ORDERS}/messages", body={"body": "x", "group": group}).status == 201


def test_a_queue_that_sends_large_messages_to_spark_has_no_groups(bench: Workbench) -> None:
    heavy = build(bench.store, defined={"orders": QueueSettings(heavy_above=1000)})
    answer = asking(heavy)("POST", f"{ORDERS}/messages", body={"body": "x", "group": "customer-42"})
    assert answer.status == 422
    assert "cannot have groups" in answer.body["message"]
    spark = build(bench.store, defined={"orders": QueueSettings(engine="spark")})
    assert asking(spark)("POST", f"{ORDERS}/messages", body={"body": "x", "group": "customer-42"}).status == 201


def test_a_message_is_cancelled_once_and_a_finished_one_keeps_its_outcome(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue()
    queue.configure(max_attempts=3)
    waiting, done = queue.enqueue({}, delay=60), queue.enqueue({})
    queue.complete(queue.claim(done))
    for path, outcome in ((waiting, "cancelled"), (waiting, "cancelled"), (done, "completed")):
        answer = ask("POST", f"{ORDERS}/message/cancel", query={"path": path})
        assert (answer.status, answer.body) == (200, {"path": path, "outcome": outcome})
    assert ask("GET", f"{ORDERS}/message", query={"path": waiting}).body["state"] == "cancelled"
    assert ask("POST", f"{ORDERS}/message/cancel", query={"path": "messages/none"}).status == 404
    assert ask("GET", f"{ORDERS}/message/cancel", query={"path": waiting}).status == 405


def test_a_delayed_message_waits(bench: Workbench, ask: Ask) -> None:
    bench.queue().configure(max_attempts=3)
    due_at = "2100-01-01T00:00:00+02:00"
    path = ask("POST", f"{ORDERS}/messages", body={"body": "x", "due_at": due_at}).body["path"]
    assert path.startswith("delayed/20991231T220000Z/")
    rows = ask("GET", f"{ORDERS}/messages", query={"state": "delayed"}).body["messages"]
    assert [(row["path"], row["due_at"]) for row in rows] == [(path, "2099-12-31T22:00:00Z")]


@pytest.mark.parametrize(
    "due_at",
    [
        "9999-12-31T23:59:59.999-12:00",
        "9999-12-30T23:59:59-12:00",
        "0001-01-01T00:00:00+12:00",
        "0273-09-23T08:11:44Z",
        "1969-12-31T23:00:00Z",
        "1970-01-01T00:00:00+12:00",
        "1971-01-01T00:00:00+12:00",
    ],
)
def test_the_ends_of_the_calendar_are_no_error(bench: Workbench, ask: Ask, due_at: str) -> None:
    bench.queue().configure(max_attempts=3)
    assert ask("POST", f"{ORDERS}/messages", body={"body": "x", "due_at": due_at}).status == 201


def test_an_unknown_parameter_is_refused_not_ignored(bench: Workbench, ask: Ask) -> None:
    bench.queue().enqueue("x")
    answer = ask("GET", f"{ORDERS}/messages", query={"stat": "delayed"})
    assert (answer.status, answer.body["fields"]) == (422, [{"field": "stat", "message": "unknown parameter"}])


def test_lists_are_paginated_without_gaps(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue()
    wanted = sorted(queue.enqueue("x") for _ in range(7))
    queue.claim(wanted[3])
    found, cursor = [], ""
    while cursor is not None:
        page = ask("GET", f"{ORDERS}/messages", query={"limit": 2, "cursor": cursor}).body
        found += [row["path"] for row in page["messages"]]
        cursor = page["next_cursor"]
    assert found == wanted[:3] + wanted[4:], "all but the one at work"
    at_work = ask("GET", f"{ORDERS}/messages", query={"state": "processing"}).body["messages"]
    assert [(row["path"], row["attempt"]) for row in at_work] == [(wanted[3], 1)]


def test_messages_are_searched_by_the_start_of_their_path(bench: Workbench, ask: Ask) -> None:
    for name in ("a-1", "a-2", "b-1"):
        bench.queue().enqueue("x", name=name)
    for prefix in ("a-", "messages/a-"):
        rows = ask("GET", f"{ORDERS}/messages", query={"prefix": prefix}).body["messages"]
        assert [row["path"] for row in rows] == ["messages/a-1", "messages/a-2"]


@pytest.mark.parametrize("name", ["a,b", "a%2Fb", "a b", "ä/ü", "a&b=c", "a..b", "p200/..x"])
def test_any_name_that_can_be_sent_can_be_found(bench: Workbench, ask: Ask, name: str) -> None:
    path = bench.queue().enqueue("x", name=name)
    assert ask("GET", f"{ORDERS}/message", query={"path": path}).body["path"] == path


def test_completed_messages_are_shown_newest_first(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue()
    paths = []
    for _ in range(3):
        paths.append(queue.enqueue({"n": 1}))
        bench.processor(queue, lambda body: "done").run(paths[-1])
        bench.clock.advance(60)
    rows = ask("GET", f"{ORDERS}/messages", query={"state": "completed", "newest": 1}).body["messages"]
    assert [row["path"] for row in rows] == paths[::-1]
    life = ask("GET", f"{ORDERS}/message", query={"path": paths[0]}).body
    assert (life["state"], life["result"], len(life["attempts"])) == ("completed", "done", 1)


class TestDeadLetters:
    @pytest.fixture(autouse=True)
    def _hour(self, bench: Workbench) -> None:
        working_hour(bench)

    def test_they_are_grouped_by_error(self, ask: Ask) -> None:
        said = ask("GET", "/api/queues/emails/dead/errors").body
        assert [(group["error_type"], group["count"]) for group in said["groups"]] == [
            ("TimeoutError", 21),
            ("Reject", 3),
        ]

    def test_a_group_is_looked_into_acknowledged_and_deleted(self, bench: Workbench, ask: Ask) -> None:
        first = ask("GET", "/api/queues/emails/dead/errors").body["groups"][0]
        group = {"error_type": first["error_type"], "message": first["message"]}
        page = ask("GET", "/api/queues/emails/dead", query=group | {"limit": 200}).body
        assert len(page["letters"]) == first["count"]
        assert {letter["message"] for letter in page["letters"]} == {first["message"]}
        assert set(first["samples"]) <= {letter["path"] for letter in page["letters"]}

        selected, cursor = 0, ""
        while cursor is not None:
            body = group | {"cursor": cursor, "limit": 8}
            said = ask("POST", "/api/queues/emails/dead/acknowledge", body=body).body
            selected, cursor = selected + said["selected"], said["next_cursor"]
        assert selected == said["acknowledged"] == first["count"]
        assert ask("GET", "/api/queues/emails/dead/errors").body["groups"][0]["acknowledged"] == first["count"]
        assert ask("GET", "/api/queues/emails").body["stats"]["acknowledged"] == first["count"]
        hidden = ask("GET", "/api/queues/emails/dead", query={"acknowledged": "false", "limit": 200}).body["letters"]
        assert len(hidden) == 24 - first["count"]
        assert not any(letter["acknowledged"] for letter in hidden)
        undone = ask("POST", "/api/queues/emails/dead/acknowledge", body=group | {"undo": True}).body
        assert undone["acknowledged"] == 0

        dry = ask("POST", "/api/queues/emails/dead/delete", body=group | {"dry_run": True}).body
        assert (dry["selected"], dry["deleted"]) == (first["count"], 0)
        gone = ask("POST", "/api/queues/emails/dead/delete", body=group).body
        assert gone["deleted"] == first["count"]
        assert bench.queue("emails").stats().dead == 24 - first["count"]

    @pytest.mark.parametrize("what", ["delete", "acknowledge"])
    def test_nothing_happens_to_all_by_mistake(self, bench: Workbench, ask: Ask, what: str) -> None:
        for body in ({}, {"everything": False}, {"cursor": "messages/a"}):
            assert ask("POST", f"/api/queues/emails/dead/{what}", body=body).status == 422
        assert bench.queue("emails").stats().dead == 24
        assert ask("POST", f"/api/queues/emails/dead/{what}", body={"everything": True}).body["selected"] == 24

    def test_they_are_filtered_and_paginated(self, ask: Ask) -> None:
        found: list[str] = []
        cursor = ""
        while cursor is not None:
            query = {"error_type": "TimeoutError", "limit": 10, "cursor": cursor}
            page = ask("GET", "/api/queues/emails/dead", query=query).body
            found += [letter["path"] for letter in page["letters"]]
            cursor = page["next_cursor"]
        assert len(found) == len(set(found)) == 21

    def test_a_dry_run_reads_no_payload(self, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
        ask = asking(build(bench.memory))
        path = ask("GET", "/api/queues/emails/dead").body["letters"][0]["path"]
        read: list[str] = []
        real = type(bench.memory).open
        monkeypatch.setattr(type(bench.memory), "open", lambda store, key: read.append(key) or real(store, key))
        for asked in ({"path": path}, {"error_type": "Reject"}, {}):
            said = ask("POST", "/api/queues/emails/dead/replay", body=asked | {"dry_run": True})
            assert (said.status, said.body["replayed"]) == (200, 0)
        assert [key for key in read if "/dead/" in key] == []
        missing = ask("POST", "/api/queues/emails/dead/replay", body={"path": "messages/nothing", "dry_run": True})
        assert missing.status == 404

    def test_a_dry_run_replays_nothing(self, bench: Workbench, ask: Ask) -> None:
        said = ask("POST", "/api/queues/emails/dead/replay", body={"error_type": "Reject", "dry_run": True}).body
        assert (said["selected"], said["replayed"]) == (3, 0)
        assert bench.queue("emails").stats().dead == 24

    def test_a_group_is_replayed_in_portions(self, bench: Workbench, ask: Ask) -> None:
        replayed, cursor = 0, ""
        while cursor is not None:
            body = {"error_type": "TimeoutError", "limit": 8, "cursor": cursor}
            said = ask("POST", "/api/queues/emails/dead/replay", body=body).body
            replayed, cursor = replayed + said["replayed"], said["next_cursor"]
        assert replayed == 21
        assert (bench.queue("emails").stats().pending, bench.queue("emails").stats().dead) == (21, 3)

    def test_one_is_replayed_and_a_second_time_is_not_there(self, ask: Ask) -> None:
        path = ask("GET", "/api/queues/emails/dead").body["letters"][0]["path"]
        assert ask("POST", "/api/queues/emails/dead/replay", body={"path": path}).body["replayed"] == 1
        again = ask("POST", "/api/queues/emails/dead/replay", body={"path": path})
        assert (again.status, again.body["error"]) == (404, "MessageNotFound")

    def test_replaying_onto_a_message_that_is_there_is_a_conflict(self, bench: Workbench, ask: Ask) -> None:
        path = ask("GET", "/api/queues/emails/dead").body["letters"][0]["path"]
        bench.queue("emails").enqueue("other", name=path.removeprefix("messages/"))
        assert ask("POST", "/api/queues/emails/dead/replay", body={"path": path}).status == 409

    def test_one_is_deleted_for_good(self, bench: Workbench, ask: Ask) -> None:
        path = ask("GET", "/api/queues/emails/dead").body["letters"][0]["path"]
        assert ask("DELETE", "/api/queues/emails/dead", query={"path": path}).status == 200
        assert ask("DELETE", "/api/queues/emails/dead", query={"path": path}).status == 404
        assert bench.queue("emails").stats().dead == 23


def test_a_completed_message_whose_payload_was_kept_is_shown_and_runs_again(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue(keep_payload=True)
    path = queue.enqueue({"n": 1}, name="kept")
    queue.complete(queue.claim(path))
    bench.clock.advance(2)
    shown = ask("GET", f"{ORDERS}/message", query={"path": path, "body": "true"}).body
    assert (shown["state"], shown["kept_payload"]) == ("completed", f"orders/done/{path}")
    assert shown["body"]["text"] == '{"n":1}'

    for created in (True, False):
        said = ask("POST", f"{ORDERS}/message/replay", query={"path": path})
        assert (said.status, said.body) == (200, {"path": path, "created": created})
    assert queue.status(path).state == "pending"

    plain = bench.queue()
    other = plain.enqueue("x")
    plain.complete(plain.claim(other))
    refused = ask("POST", f"{ORDERS}/message/replay", query={"path": other})
    assert (refused.status, refused.body["error"]) == (404, "MessageNotFound")


def test_a_pause_is_seen_by_every_worker(bench: Workbench, ask: Ask) -> None:
    bench.queue().enqueue("x")
    assert ask("POST", f"{ORDERS}/pause").body == {"queue": "orders", "paused": True}
    assert bench.queue().claim_next() == []
    assert ask("GET", ORDERS).body["health"] == "paused"
    ask("POST", f"{ORDERS}/resume")
    assert len(bench.queue().claim_next()) == 1


def test_an_overdue_lease_and_a_silent_worker_are_stuck(bench: Workbench, ask: Ask) -> None:
    queue = bench.queue(worker_id="w1")
    path = queue.enqueue("x")
    queue.claim(path)
    assert ask("GET", f"{ORDERS}/stuck").body["leases"] == []
    bench.clock.advance(120)
    assert [lease["path"] for lease in ask("GET", f"{ORDERS}/stuck").body["leases"]] == [path]


def test_statistics_are_passed_on_as_spark_wrote_them(bench: Workbench, ask: Ask) -> None:
    assert ask("GET", "/api/statistics").body["available"] is False
    bench.memory.put("analytics/latest.json", b'{"hours": [{"hour": "10", "completed": 3}]}')
    assert ask("GET", "/api/statistics").body["document"] == {"hours": [{"hour": "10", "completed": 3}]}


def test_only_deployed_queues_are_looked_at_where_the_rest_is_not_allowed(bench: Workbench) -> None:
    bench.queue("other").enqueue("x")
    ask = asking(build(bench.store, defined={"orders": bench.queue().settings}, discover=False))
    assert [queue["name"] for queue in ask("GET", "/api/queues").body["queues"]] == ["orders"]
    assert all(prefix.startswith("orders/") for verb, prefix in bench.store.log if verb == "list")


def test_a_hundred_thousand_messages_are_not_read_to_say_that_there_are_many(bench: Workbench, ask: Ask) -> None:
    for number in range(5000):
        bench.memory.put(f"orders/messages/{number:06d}", b"x")
    bench.store.take()
    said = ask("GET", "/api/queues").body["queues"][0]
    assert (said["stats"]["pending"], said["stats"]["exact"]) == (2000, False)
    assert bench.store.billed < 10


@pytest.mark.parametrize(
    ("error", "status"), [(Unavailable("no answer"), 503), (AccessDenied("s3:ListBucket is missing"), 403)]
)
def test_trouble_with_the_store_has_its_own_status(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, error: QueueError, status: int
) -> None:
    ask = asking(build(bench.memory))

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(bench.memory, "list", fail)
    answer = ask("GET", f"{ORDERS}/stats")
    assert (answer.status, answer.body["error"], answer.body["message"]) == (status, type(error).__name__, str(error))
    assert answer.body["way_out"]


def test_one_unreadable_queue_does_not_hide_the_others(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.queue("fine").enqueue("x")
    bench.queue("locked").enqueue("x")
    plain = bench.memory.list

    def refuse(prefix: str, **options: Any) -> Any:
        if prefix.startswith("locked/"):
            raise AccessDenied("s3:ListBucket is missing for locked/")
        return plain(prefix, **options)

    monkeypatch.setattr(bench.memory, "list", refuse)
    said = {
        queue["name"]: queue["health"] for queue in asking(build(bench.memory))("GET", "/api/queues").body["queues"]
    }
    assert said == {"fine": "healthy", "locked": "unknown"}


def test_an_unknown_queue_is_404_with_a_suggestion(bench: Workbench, ask: Ask) -> None:
    bench.queue("emails").enqueue("x")
    for method, rest, body in (
        ("GET", "", None),
        ("GET", "/stats", None),
        ("GET", "/messages", None),
        ("GET", "/dead/errors", None),
        ("POST", "/pause", {}),
        ("POST", "/messages", {"body": "x"}),
    ):
        said = ask(method, f"/api/queues/emailz{rest}", body=body)
        assert (said.status, said.body["error"], said.body["suggestions"]) == (404, "QueueNotFound", ["emails"])
        assert said.body["message"] == "there is no queue 'emailz'. Did you mean emails?"
    assert bench.keys("emailz/") == []


def test_an_unknown_queue_is_not_looked_for_where_only_deployed_ones_may_be_seen(bench: Workbench) -> None:
    ask = asking(build(bench.store, defined={"emails": bench.queue("emails").settings}, discover=False))
    bench.store.take()
    said = ask("GET", "/api/queues/emailz")
    assert (said.status, said.body["error"], said.body["suggestions"]) == (404, "QueueNotFound", ["emails"])
    assert bench.store.take() == {}


def test_settings_have_their_origin_before_the_first_message(bench: Workbench, ask: Ask) -> None:
    bench.queue(max_attempts=7).publish_settings("deployment")
    said = ask("GET", ORDERS).body
    found = {one["name"]: one for one in said["effective"]}
    assert (found["max_attempts"]["value"], found["max_attempts"]["origin"]) == (7, "definition")
    assert (found["visibility_timeout"]["shown"], found["visibility_timeout"]["origin"]) == ("30 s", "default")
    assert said["settings"]["max_attempts"] == 7
    assert said["published_settings"]["by"] == "deployment"
    assert [queue["name"] for queue in ask("GET", "/api/queues").body["queues"]] == ["orders"]


class TestRefusals:
    @pytest.fixture(autouse=True)
    def _queue(self, bench: Workbench) -> None:
        bench.queue().configure(max_message_size=100, max_depth=5)

    @pytest.mark.parametrize(
        ("ask_for", "status", "error"),
        [
            (lambda ask: ask("GET", "/api/queues/nope"), 404, "QueueNotFound"),
            (lambda ask: ask("GET", "/api/queues/Not%20A%20Name"), 422, "InvalidRequest"),
            (lambda ask: ask("GET", f"{ORDERS}/message", query={"path": "messages/none"}), 404, "MessageNotFound"),
            (lambda ask: ask("GET", "/api/nowhere"), 404, "NoSuchRoute"),
            (lambda ask: ask("PUT", f"{ORDERS}/pause"), 405, "MethodNotAllowed"),
            (lambda ask: ask("POST", f"{ORDERS}/messages", body={"body": "x" * 101}), 413, "MessageTooLarge"),
            (lambda ask: ask("POST", f"{ORDERS}/messages", body="x" * 6_000_000), 413, "MessageTooLarge"),
            (lambda ask: ask("POST", f"{ORDERS}/messages", body="a=1", content_type="text/plain"), 415, None),
            (lambda ask: ask("POST", f"{ORDERS}/messages", body="[1]"), 422, "InvalidRequest"),
            (lambda ask: ask("POST", f"{ORDERS}/messages", body="[" * 50_000), 422, "InvalidRequest"),
            (lambda ask: ask("POST", f"{ORDERS}/messages", body='{"body": "\\ud800"}'), 422, "InvalidRequest"),
            (lambda ask: ask("POST", f"{ORDERS}/messages", body='{"body": NaN}'), 422, "InvalidRequest"),
        ],
    )
    def test_each_has_its_status_and_a_way_out(
        self, ask: Ask, ask_for: Callable[[Ask], Answer], status: int, error: str | None
    ) -> None:
        answer = ask_for(ask)
        assert answer.status == status
        assert answer.body["way_out"]
        assert error in (None, answer.body["error"])

    def test_a_full_queue_says_so(self, bench: Workbench, ask: Ask) -> None:
        for _ in range(5):
            bench.queue().enqueue("x")
        bench.sweeper(bench.queue()).sweep()
        answer = ask("POST", f"{ORDERS}/messages", body={"body": "x"})
        assert (answer.status, answer.body["error"]) == (429, "QueueFull")
        assert answer.headers["retry-after"]

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "body"),
            ({"body": 1, "priority": 256}, "priority"),
            ({"body": 1, "priority": "high"}, "priority"),
            ({"body": 1, "delay_seconds": -1}, "delay_seconds"),
            ({"body": 1, "due_at": "2026-01-01T00:00:00"}, "due_at"),
            ({"body": 1, "due_at": "2026-01-01T00:00:00Z", "delay_seconds": 1}, "due_at"),
            ({"body": 1, "due_at": 0}, "due_at"),
            ({"body": 1, "dedup_id": ""}, "dedup_id"),
            ({"body": 1, "group": ""}, "group"),
            ({"body": 1, "group": "x" * 900}, "group"),
            ({"body": 1, "metadata": {"a b": "x"}}, "metadata.a b.[key]"),
            ({"body": 1, "prioritty": 1}, "prioritty"),
        ],
    )
    def test_a_wrong_field_is_named(self, ask: Ask, body: Any, field: str) -> None:
        answer = ask("POST", f"{ORDERS}/messages", body=body)
        assert answer.status == 422
        assert field in [one["field"] for one in answer.body["fields"]]


class TestOtherSites:
    @pytest.mark.parametrize(
        "headers",
        [
            {"x_s3queue": ""},
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec_fetch_site": "cross-site"},
            {"sec_fetch_site": "same-site"},
        ],
    )
    def test_nobody_elses_page_can_change_anything(self, bench: Workbench, ask: Ask, headers: dict[str, str]) -> None:
        bench.queue().enqueue("x")
        answer = ask("POST", f"{ORDERS}/pause", **headers)
        assert (answer.status, answer.body["error"]) == (403, "CrossSite")
        assert bench.queue().overrides() == {}

    def test_the_own_page_can(self, bench: Workbench, ask: Ask) -> None:
        bench.queue().enqueue("x")
        own = {"origin": "https://api.example", "sec_fetch_site": "same-origin"}
        assert ask("POST", f"{ORDERS}/pause", **own).status == 200

    def test_nothing_may_frame_it_or_run_in_it(self, ask: Ask) -> None:
        for path in ("/", "/app.js", "/api/queues", "/nowhere"):
            headers = ask("GET", path).headers
            policy = headers["content-security-policy"]
            assert "script-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in headers


def test_no_payload_and_no_name_is_logged(bench: Workbench, ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bench.queue().configure(max_attempts=3)
    path = ask("POST", f"{ORDERS}/messages", body={"body": "s3cr3t"}).body["path"]
    ask("GET", f"{ORDERS}/message", query={"path": path, "body": 1})
    ask("POST", f"{ORDERS}/messages", body={"body": "s3cr3t", "priority": "s3cr3t"})
    assert "s3cr3t" not in caplog.text


def test_a_bug_is_a_500_without_details(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(*_: Any, **__: Any) -> Any:
        raise KeyError("s3cr3t"[::-1])

    ask = asking(build(bench.memory))
    monkeypatch.setattr(bench.memory, "list", break_down)
    answer = ask("GET", f"{ORDERS}/stats")
    assert (answer.status, answer.body["error"]) == (500, "InternalError")
    assert "s3cr3t"[::-1] not in str(answer.body) + caplog.text
    assert "KeyError" in caplog.text
