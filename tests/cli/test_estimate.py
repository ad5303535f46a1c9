"""`s3queue estimate`: the sums are shown and add up, nonsense is refused, and what a load runs into is said."""

from __future__ import annotations

import pytest
import typer

from s3queue.cli.commands.estimate import rate, share

BILLS = ("s3queue", "sqs", "sqs_batched")


def test_without_options_it_shows_an_ordinary_load(cli):
    shown = cli("estimate").out
    assert "25,920,000 messages of 1 KiB in 30 days" in shown
    # A little more than the protocol's one GET: each process reads queue.json every ten seconds.
    assert "3 PUT, 1.1 GET, 2 DELETE" in shown
    assert "none needed" in shown


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--batch", "100", "--size", "300 KiB", "--retries", "5%", "--dead", "0.1%"),
        ("--heavy", "0.01", "--heavy-time", "2m", "--events", "all", "--late", "0.1", "--rescued", "0.01"),
        ("--no-history", "--memory", "1769", "--queues", "20", "--handler", "2s"),
    ],
)
def test_every_line_is_shown_and_they_add_up(cli, options):
    answer = cli("estimate", "--rate", "100/s", *options, "--json").json
    assert answer["messages"] == 259_200_000
    for name in BILLS:
        lines = answer[name]["lines"]
        assert answer[name]["total"] == pytest.approx(sum(line["cost"] for line in lines), abs=0.001)
        assert answer[name]["per_million"] == pytest.approx(answer[name]["total"] / 259.2, rel=1e-4)
        for line in lines:
            assert line["cost"] == pytest.approx(line["count"] * line["price"] / line["per"], abs=0.001)


def test_json_tells_what_the_tables_tell(cli):
    answer = cli("estimate", "--rate", "100k/s", "--json").json
    assert answer["requests_per_message"] == pytest.approx({"PUT": 3, "GET": 1, "DELETE": 2}, rel=0.1)
    assert {one["kind"] for one in answer["prefixes"]} == {"messages", "leases", "records"}
    assert answer["shards"] == max(one["shards"] for one in answer["prefixes"]) > 1
    assert answer["lambda"]["concurrency"] > answer["lambda"]["default_limit"] == 1000
    assert answer["runs"] is None
    assert answer["break_even"] == answer["break_even_by_rate"]["100000"]

    shown = cli("estimate", "--rate", "100k/s").out
    assert f"define(…, shards={answer['shards']})" in shown
    assert "an account has 1,000: raise the quota" in shown
    assert f"from {answer['break_even']['sqs']} messages per object" in shown


def test_the_point_at_which_sqs_is_cheaper_is_told(cli):
    turns = cli("estimate", "--rate", "1000/s", "--json").json["break_even"]["sqs"]
    below = cli("estimate", "--rate", "1000/s", "--batch", str(turns - 1), "--json").json
    above = cli("estimate", "--rate", "1000/s", "--batch", str(turns), "--json").json
    assert below["s3queue"]["total"] > below["sqs"]["total"]
    assert above["s3queue"]["total"] <= above["sqs"]["total"]


def test_a_rate_at_which_sqs_is_always_cheaper_is_said(cli):
    assert "never: SQS is the better choice" in cli("estimate", "--rate", "1/s").out


def test_spark_runs_and_whether_they_keep_up(cli):
    runs = cli("estimate", "--rate", "1/h", "--heavy", "1", "--heavy-time", "5m", "--json").json["runs"]
    assert runs["started"] == pytest.approx(720, rel=0.12)
    assert runs["seconds"] == 360
    assert "do not keep up" in cli("estimate", "--rate", "1/s", "--heavy", "1").out
    assert "do not keep up" not in cli("estimate", "--rate", "1/s", "--heavy", "1", "--max-runs", "30").out
    assert "vCPU at one time" in cli("estimate", "--rate", "1/s", "--heavy", "1", "--max-runs", "30").out


def test_an_idle_queue_costs_a_list_a_minute(cli):
    answer = cli("estimate", "--rate", "0", "--json").json
    (lists,) = [line for line in answer["s3queue"]["lines"] if line["what"] == "S3: sweeper"]
    assert lists["count"] == 43_200


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--rate", "fast"), "not a rate"),
        (("--rate", "-1/s"), "not a rate"),
        (("--retries", "3"), "not a share"),
        (("--dead", "120%"), "not a share"),
        (("--late", "0.7", "--rescued", "0.7"), "must not be more than 1 together"),
        (("--batch", "0"), "--batch"),
        (("--handler", "soon"), "not a duration"),
        (("--memory", "64"), "--memory"),
        (("--size", "big"), "big"),
        (("--events", "some"), "off, failures or all"),
    ],
)
def test_nonsense_is_the_users_mistake_and_named(cli, options, reason):
    ran = cli("estimate", *options, code=2)
    assert reason in ran.err
    assert not ran.out


def test_help_says_what_is_left_out(cli):
    shown = cli("estimate", "--help").out
    assert "List prices of us-east-1" in shown
    assert "Not included on either side" in shown


@pytest.mark.parametrize(
    ("text", "a_second"),
    [("5", 5), ("100/s", 100), ("3600/h", 1), ("86.4k/day", 1), ("2.592M/month", 1), ("60/min", 1)],
)
def test_rates(text, a_second):
    assert rate(text) == pytest.approx(a_second)


@pytest.mark.parametrize(("text", "found"), [("0.02", 0.02), ("2%", 0.02), ("1", 1.0), ("100 %", 1.0), ("0", 0.0)])
def test_shares(text, found):
    assert share(text) == pytest.approx(found)


@pytest.mark.parametrize("text", ["2", "101%", "-1", "some", ""])
def test_what_is_no_share(text):
    with pytest.raises(typer.BadParameter):
        share(text)


def test_a_rate_of_the_queue_is_part_of_the_estimate(cli):
    free, limited = (cli("estimate", "--rate", "1/s", *more, "--json").json for more in ((), ("--limit", "100/min")))
    assert limited != free
    assert "such as '100/min'" in cli("estimate", "--rate", "1/s", "--limit", "0/min", code=2).err


def test_dedup_ids_and_cancellations_change_the_bill(cli):
    def cost(*options):
        return cli("estimate", "--rate", "100/s", "--json", *options).json["s3queue"]["per_million"]

    # A PUT and two GETs more; and a message that is cancelled needs no function.
    assert cost("--dedup", "100%") - cost() == pytest.approx(5 + 2 * 0.4, abs=0.5)
    assert cost("--dedup", "50%") - cost() == pytest.approx((5 + 2 * 0.4) / 2, abs=0.25)
    assert 15 < cost("--cancelled", "1%") < cost()
    assert "--dedup is for single messages" in cli("estimate", "--dedup", "1%", "--batch", "10", code=2).err
    said = cli("estimate", "--cancelled", "1%", "--partitions", "4", code=2).err
    assert "not counted for partitions" in said


def test_schedules_of_an_idle_queue_cost_a_list_per_minute_more(cli):
    def cost(*options):
        return cli("estimate", "--rate", "0/s", "--json", *options).json["s3queue"]["total"]

    assert cost("--schedules", "5") - cost() == pytest.approx(0.22, abs=0.01)


def test_delays_sends_and_flows_change_the_bill(cli):
    def cost(*options):
        return cli("estimate", "--rate", "100/s", "--json", *options).json["s3queue"]["per_million"]

    usual = cost()
    # Two GETs and a LIST more for each that the sweeper dispatches, and its looks, which all of them share.
    assert 5 < cost("--delayed", "100%", "--delay", "5s") - usual < 25
    assert cost("--sends", "100%") - usual == pytest.approx(0.40, abs=0.3)
    assert cost("--flows", "100%", "--members", "100") - usual == pytest.approx(5 + 2 * 0.4, abs=1.5)
    assert cost("--flows", "100%", "--members", "1") > cost("--flows", "100%", "--members", "100")
    for option in ("--delayed", "--sends", "--flows"):
        assert f"{option} is for single messages" in cli("estimate", option, "1%", "--batch", "10", code=2).err
        assert "not counted for partitions" in cli("estimate", option, "1%", "--partitions", "4", code=2).err
    assert cli("estimate", "--flows", "1%", "--members", "0", code=2).err


def test_a_short_delay_on_an_idle_queue_costs_what_the_document_says(cli):
    """Of a million messages a year or so, each alone."""

    def cost(*options):
        return cli("estimate", "--rate", "0.001/s", "--json", *options).json["s3queue"]["per_million"]

    # docs/costs.md: $53.93 for the sweeper; the dispatch itself is like that of a late event, $5.80.
    assert cost("--delayed", "100%", "--delay", "5s") - cost() == pytest.approx(53.93 + 5.80, rel=0.1)
