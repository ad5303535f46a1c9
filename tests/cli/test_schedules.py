"""Schedules by the command: add, list, next, pause, resume, remove."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _orders(cli):
    cli("create", "orders")


CRON = ("--cron", "15 9 * * 1-5", "--tz", "Europe/Berlin")


def test_a_schedule_is_added_shown_paused_resumed_and_removed(cli):
    assert cli("schedule", "list", "orders", "--json").json == []

    made = cli("schedule", "add", "orders", "report", *CRON, "--body", '{"a": 1}', "--json").json
    assert (made["queue"], made["name"], made["body"], made["source"]) == ("orders", "report", '{"a":1}', "runtime")
    assert len(made["next_at"]) == 5
    assert all(at.endswith(("T07:15:00Z", "T08:15:00Z")) for at in made["next_at"])

    listed = cli("schedule", "list", "orders").out
    assert "15 9 * * 1-5" in listed
    assert "Europe/Berlin" in listed
    assert cli("schedule", "next", "orders", "report").out.count(" UTC") == 5

    assert "is paused" in cli("schedule", "pause", "orders", "report").out
    assert cli("schedule", "next", "orders", "report", "--json").json["next_at"] == []
    assert cli("schedule", "resume", "orders", "report", "--json").json["paused"] is False

    assert "--yes" in cli("schedule", "remove", "orders", "report", code=2).err
    assert cli("schedule", "remove", "orders", "report", "--yes", "--json").json["removed"] is True
    assert "no schedule" in cli("schedule", "list", "orders").err


def test_an_existing_one_is_changed_only_if_asked(cli):
    cli("schedule", "add", "orders", "report", *CRON)

    assert "exists already" in cli("schedule", "add", "orders", "report", "--cron", "0 9 * * *", code=None).err
    changed = cli("schedule", "add", "orders", "report", "--cron", "0 9 * * *", "--replace", "--json").json
    assert (changed["cron"], changed["tz"]) == ("0 9 * * *", "UTC")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["orders", "report"], "--cron is missing"),
        (["orders", "report", "--cron", "0 0 31 2 *"], "never due"),
        (["orders", "report", "--cron", "often"], "five fields"),
        (["orders", "report", *CRON, "--tz", "Mars/Olympus"], "time zone 'Mars/Olympus'"),
        (["orders", "Report", *CRON], "schedule name 'Report'"),
        (["orders", "report", *CRON, "--priority", "300"], "priority"),
        (["orders"], "NAME"),
    ],
)
def test_a_mistake_is_said_in_one_line_and_nothing_is_written(cli, arguments, says):
    ran = cli("schedule", "add", *arguments, code=None)

    assert ran.code != 0
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert cli("schedule", "list", "orders", "--json").json == []


def test_what_does_not_exist_is_named(cli):
    for verb in ("next", "pause", "resume", "remove"):
        assert "no schedule 'nope'" in cli("schedule", verb, "orders", "nope", code=None).err


def test_one_that_cannot_be_read_can_be_removed(cli):
    queue = cli.queue()
    queue.store.put("orders/schedules/report.json", b"x")

    assert "orders/schedules/report.json" in cli("schedule", "next", "orders", "report", code=None).err
    cli("schedule", "remove", "orders", "report", "--yes")
    assert queue.schedules.names() == []


def test_a_body_that_is_nested_too_deeply_is_text(cli):
    made = cli("schedule", "add", "orders", "report", *CRON, "--body", "[" * 20_000, "--json").json
    assert made["name"] == "report"
