"""A typo is an error with a suggestion; settings are shown as they apply, with their origin."""

from __future__ import annotations

import pytest

from s3queue import QueueSettings

CALLS = [
    ["stats", "emailz"],
    ["size", "emailz"],
    ["peek", "emailz"],
    ["show", "emailz", "messages/a"],
    ["list", "emailz"],
    ["tail", "emailz", "--for", "1s"],
    ["pause", "emailz"],
    ["resume", "emailz"],
    ["purge", "emailz", "--yes"],
    ["cleanup", "emailz", "--yes"],
    ["configure", "emailz"],
    ["configure", "emailz", "max_attempts=5"],
    ["set-concurrency", "emailz", "5"],
    ["breaker", "show", "emailz"],
    ["breaker", "open", "emailz"],
    ["dead", "list", "emailz"],
    ["dead", "errors", "emailz"],
    ["dead", "replay", "emailz", "--all"],
    ["dead", "acknowledge", "emailz", "--all"],
    ["workers", "emailz"],
    ["runs", "emailz"],
    ["locks", "list", "emailz"],
    ["partitions", "emailz"],
    ["sweep", "emailz", "--defaults"],
    ["cancel", "emailz", "messages/a"],
    ["retry", "emailz", "messages/a"],
    ["schedule", "list", "emailz"],
    ["schedule", "add", "emailz", "x", "--cron", "0 0 * * *"],
]


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_a_typo_is_an_error_with_a_suggestion_and_writes_nothing(cli, call):
    cli("create", "emails")
    ran = cli(*call, "--json", code=1)
    assert ran.out == ""
    assert ran.err == "s3queue: there is no queue 'emailz'. Did you mean emails?\n"
    assert cli.stored_keys("emailz/") == []


def test_a_name_like_no_other_says_how_to_create_it(cli):
    assert "create it with `s3queue create reports`" in cli("stats", "reports", code=1).err


def test_sending_to_what_nothing_serves_warns_and_sends(cli):
    cli("create", "emails")
    ran = cli("send", "emailz", "hello")
    assert "nothing serves emailz" in ran.err
    assert "Did you mean emails?" in ran.err
    assert len(cli.stored_keys("emailz/messages/")) == 1
    assert cli("send", "emailz", "hello", "-q").err == ""
    assert "nothing serves" in cli("send", "emails", "hello").err


@pytest.mark.parametrize("served_by", ["deployment", "heartbeat", "sweeper"])
def test_sending_to_what_something_serves_says_nothing(cli, served_by):
    queue = cli.queue("emails", settings=QueueSettings.of(max_attempts=7))
    if served_by == "deployment":
        queue.publish_settings("deployment")
    else:
        queue.store.put("emails/workers/w1" if served_by == "heartbeat" else "emails/stats.json", b"{}")
    assert cli("send", "emails", "hello").err == ""


def test_settings_are_shown_as_they_apply_with_their_origin(cli):
    queue = cli.queue(settings=QueueSettings.of(max_attempts=7, visibility_timeout=90, max_message_size="1 MiB"))
    assert queue.publish_settings("deployment")
    cli("configure", "orders", "retry_cap=1h")

    found = cli("configure", "orders", "--json").json

    assert found["published_by"] == "deployment"
    assert (found["settings"]["max_attempts"], found["settings"]["retry_cap_seconds"]) == (7, 3600)
    origins = found["origins"]
    assert (origins["max_attempts"], origins["retry_cap"], origins["shards"]) == ("definition", "queue.json", "default")
    lines = {line.split()[0]: line.split() for line in cli("configure", "orders").out.splitlines() if line.split()}
    assert lines["visibility_timeout"][1:] == ["1", "min", "30", "s", "definition"]
    assert lines["max_message_size"][1:] == ["1", "MiB", "definition"]
    assert lines["retry_cap"][1:] == ["1", "h", "queue.json"]
    assert lines["dead_retention"][1:] == ["14", "d", "default"]


def test_what_nobody_published_is_said_to_be_unknown(cli):
    cli("create", "orders")
    assert "nobody has published" in cli("configure", "orders").err


def test_a_fresh_deployment_shows_its_queues_before_the_first_message(cli):
    cli.queue("emails").publish_settings("deployment")
    assert [one["name"] for one in cli("queues", "--json").json] == ["emails"]
    assert cli("stats", "emails", "--json").json["health"] == "idle"
