"""Queues: made, listed, changed, emptied, deleted."""

from __future__ import annotations

from datetime import timedelta

import pytest

from s3queue import QueueSettings
from s3queue.clock import SystemClock
from s3queue.dashboard.overview import overview


def test_the_list_says_what_the_overview_says(cli):
    assert cli("queues", "--json").json == []
    assert "has no queue yet" in cli("queues").err
    cli("send", "orders", "a")
    cli.dies({"a": 1}, ValueError("no"))
    cli("create", "emails")

    found = cli("queues", "--json").json

    assert [one["name"] for one in found] == ["emails", "orders"]
    expected = overview(cli.queue().store, "orders").to_json()
    assert found[1]["health"] == expected["health"]
    assert found[1]["stats"]["dead"] == 2
    assert found[1].keys() == expected.keys()
    shown = cli("queues").out
    assert "failing" in shown
    assert "2 dead letters wait for a decision" in shown


def test_a_queue_is_judged_by_the_settings_that_its_worker_published(cli):
    queue = cli.queue("held", settings=QueueSettings(paused=True))
    queue.publish_settings("worker")
    queue.enqueue("x")
    (listed,) = cli("queues", "--json").json
    assert (listed["health"], listed["paused"]) == ("paused", True)
    assert cli("stats", "held", "--json").json["health"] == "paused"


def test_create_writes_settings_once(cli):
    made = cli("create", "orders", "max_attempts=5", "visibility_timeout=2m", "--json").json
    assert made["settings"]["max_attempts"] == 5
    assert made["settings"]["visibility_timeout_seconds"] == 120
    assert "exists already" in cli("create", "orders", code=1).err
    cli("create", "orders", "--exist-ok")
    assert cli.queue().overrides() == {"max_attempts": 5, "visibility_timeout_seconds": 120.0}


def test_configure_changes_shows_and_takes_back(cli):
    cli("create", "orders")
    cli(
        "configure",
        "orders",
        "retry_base=500ms",
        "max_depth=100",
        "history=off",
        "max_message_size=1 MiB",
        "engine=spark",
    )
    queue = cli.queue()
    queue.refresh()
    settings = queue.settings
    assert (settings.retry_base, settings.max_depth, settings.history) == (timedelta(seconds=0.5), 100, False)
    assert (settings.max_message_size, settings.engine) == (1024 * 1024, "spark")

    shown = cli("configure", "orders", "retry_base=default", "max_depth=default", "--json").json

    assert shown["overrides"] == {"history": False, "max_message_size": "1 MiB", "engine": "spark"}
    assert shown["settings"]["retry_base_seconds"] == 1.0
    table = cli("configure", "orders").out
    assert "queue.json" in table


def test_configure_takes_an_old_name_and_stores_the_new_one(cli):
    cli("create", "orders")
    cli("configure", "orders", "batch=7")
    assert cli.queue().overrides() == {"messages_per_run": 7}


def test_a_mistake_among_several_settings_changes_nothing(cli):
    cli("create", "orders")
    cli("configure", "orders", "max_attempts=5", "concurrency=0", code=2)
    refused = cli("configure", "orders", "messages_per_run=12000", code=2)
    assert "messages_per_run must be at most 1000, not 12000" in refused.err
    assert cli.queue().overrides() == {}


def test_a_setting_that_does_not_suit_is_shown_as_such_and_hinders_no_pause(cli):
    cli("create", "orders", "max_attempts=1")
    cli.queue(settings=QueueSettings.of(partitions=2, collect=10)).publish_settings("deployment")
    cli("pause", "orders")

    shown = cli("configure", "orders", "--json").json
    assert (shown["settings"]["max_attempts"], shown["origins"]["max_attempts"]) == (3, "default")
    assert (shown["settings"]["paused"], shown["overrides"]) == (True, {"max_attempts": 1, "paused": True})
    assert "queue.json has max_attempts, which does not apply: collect needs" in cli("configure", "orders").err
    checks = cli("doctor", "orders", "--races", "0", "--json", code=None).json["checks"]
    (found,) = [one for one in checks if one["check"] == "queue.json"]
    assert found["verdict"] == "warning"
    assert "max_attempts does not apply" in found["found"]


@pytest.mark.parametrize("number", ["²", "9" * 5000, "1e5", ""], ids=["sup", "long", "exponent", "empty"])
def test_what_only_looks_like_a_number_is_refused(cli, number):
    cli("create", "orders")
    if number:
        for setting in ("max_depth", "max_attempts", "max_message_size", "heavy_above"):
            assert setting in cli("configure", "orders", f"{setting}={number}", code=2).err
    assert "N must be a whole number" in cli("set-concurrency", "orders", number, code=2).err
    assert cli.queue().overrides() == {}


def test_pause_and_resume(cli):
    cli("send", "orders", "a")
    assert cli("pause", "orders", "--json").json == {"queue": "orders", "paused": True}
    assert cli("stats", "orders", "--json").json["health"] == "paused"
    assert cli.queue().claim_next() == []
    cli("resume", "orders")
    assert cli("stats", "orders", "--json").json["paused"] is False


def test_resume_ends_the_pause_of_a_definition_too(cli):
    worker = cli.queue(settings=QueueSettings(paused=True))
    worker.publish_settings("deployment")
    worker.enqueue(b"a")

    cli("resume", "orders")

    assert cli("stats", "orders", "--json").json["paused"] is False
    assert len(cli.queue(settings=QueueSettings(paused=True)).claim_next()) == 1
    cli("pause", "orders")
    cli("resume", "orders")
    assert cli.queue().overrides() == {"paused": False}


def test_set_concurrency_without_a_function_is_for_pull_workers(cli):
    cli("create", "orders")
    answer = cli("set-concurrency", "orders", "8", "--json").json
    assert answer == {"queue": "orders", "concurrency": 8, "function": None}
    assert cli.queue().overrides() == {"concurrency": 8}


def test_purge_asks_and_spares_what_is_at_work(cli):
    for number in range(5):
        cli("send", "orders", f"{number}")
    cli("send", "orders", "later", "--delay", "1h")
    queue = cli.queue()
    (claim,) = queue.claim_next()
    before = cli.stored_keys()

    assert "--yes" in cli("purge", "orders", code=2).err
    assert cli("purge", "orders", "--dry-run", "--json").json["dry_run"] is True
    assert cli.stored_keys() == before

    assert cli("purge", "orders", "--yes", "--json").json == {
        "queue": "orders",
        "purged": 5,
        "kept": 1,
        "dry_run": False,
    }
    assert cli.stored_keys("orders/messages/") == [queue.keys.message(claim.path)]


def test_delete_asks_waits_for_workers_and_leaves_nothing(cli):
    cli("send", "orders", "a")
    cli("send", "emails", "b")
    cli("configure", "orders", "max_attempts=5")
    queue = cli.queue()
    (claim,) = queue.claim_next()
    before = cli.stored_keys()

    assert cli("delete", "orders", "--dry-run", "--json").json == {"queue": "orders", "deleted": 3, "dry_run": True}
    assert "--force" in cli("delete", "orders", "--yes", code=1).err
    assert cli.stored_keys() == before

    queue.release(claim)
    assert "--yes" in cli("delete", "orders", code=2).err
    assert cli("delete", "orders", "--yes", "--json").json["deleted"] == 2
    assert cli.stored_keys("orders/") == []
    assert len(cli.stored_keys("emails/")) == 1
    cli("delete", "orders", "--yes", code=1)


@pytest.mark.parametrize("words", [["--dry-run"], ["--yes"]])
def test_cleanup_keeps_what_is_within_retention(cli, words):
    cli("send", "orders", "1")
    cli.work(lambda body: None)
    assert cli("cleanup", "orders", *words, "--json").json["deleted"] == 0
    cli("configure", "orders", "record_retention=0.1s")
    SystemClock().sleep(1.2)
    cleaned = cli("cleanup", "orders", *words, "--json").json
    assert cleaned == {"queue": "orders", "deleted": 1, "dry_run": words == ["--dry-run"]}
    assert len(cli.stored_keys("orders/records/")) == (words == ["--dry-run"])


def test_cleanup_deletes_what_it_asks_about_also_kept_payloads_and_parts_of_sends(cli):
    queue = cli.queue("kept", settings=QueueSettings(keep_payload=True))
    queue.publish_settings("worker")
    done, alone = queue.enqueue("1"), queue.enqueue("2")
    for path in (done, alone):
        queue.complete(queue.claim(path))
    queue.store.delete(queue.keys.record(alone))
    cli("configure", "kept", "record_retention=0.1s")
    SystemClock().sleep(1.2)

    asked = cli("cleanup", "kept", "--dry-run")
    assert "3 objects past retention" in asked.out + asked.err
    assert all(f"{kind} for" in asked.out + asked.err for kind in ("records", "done", "dedup", "dead", "outbox"))
    assert cli("cleanup", "kept", "--yes", "--json").json["deleted"] == 3
    assert cli.stored_keys("kept/done/") == cli.stored_keys("kept/records/") == []
