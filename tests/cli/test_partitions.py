"""partitions: who holds a group, and what holds it up."""

from __future__ import annotations

import json

from s3queue import Retry, Worker
from s3queue.flow.partitions import hold_partition


def fails(cli, group, body="x"):
    queue = cli.queue()
    path = queue.enqueue(json.dumps(body), group=group)

    def handler(body):
        raise Retry("the shop is closed", after=3600)

    Worker(queue, handler).run_until_empty()
    return path


def test_a_group_that_is_held_up_says_by_whom_and_why(cli):
    path = fails(cli, "customer-42")
    queue = cli.queue()
    queue.enqueue("second", group="customer-42")
    queue.enqueue("x", group="a b")
    queue.enqueue("x", group="busy")
    assert hold_partition(queue.leases, "@busy")

    shown = cli("partitions", "orders").out
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert f"held by {queue.worker_id}, renewed" in lines["busy"]
    assert "free" in lines["a"]
    assert "open" in lines["customer-42"]
    assert "the shop is closed" in lines["customer-42"]
    assert "(in " in lines["customer-42"]

    answer = cli("partitions", "orders", "--group", "customer-42", "--json").json
    (one,) = answer["partitions"]
    assert (one["state"], one["messages"], one["waiting"], one["next_path"]) == ("open", 2, 1, path)
    leased = cli("partitions", "orders", "--leased", "--json").json["partitions"]
    assert [one["group"] for one in leased] == ["busy", "customer-42"]


def test_many_groups_come_in_pages(cli):
    queue = cli.queue()
    for number in range(5):
        queue.enqueue("x", group=f"g{number}")
    first = cli("partitions", "orders", "--limit", "3")
    assert "more: --after @g2" in first.err
    rest = cli("partitions", "orders", "--limit", "3", "--after", "@g2", "--json").json
    assert ([one["group"] for one in rest["partitions"]], rest["next_after"]) == (["g3", "g4"], None)


def test_a_queue_without_partitions_says_so_and_a_mistake_too(cli):
    cli.queue().enqueue("x")
    assert "orders: no partition has messages or a lease" in cli("partitions", "orders").err
    assert "orders: no partition has a lease" in cli("partitions", "orders", "--leased").err
    assert "is not a partition" in cli("partitions", "orders", "--after", "g2", code=2).err
    assert "at most 512" in cli("partitions", "orders", "--group", "x" * 900, code=2).err


def test_what_a_producer_calls_a_group_cannot_draw_on_the_terminal(cli):
    cli.queue().enqueue("x", group="\x1b[2Jevil")
    assert "\x1b[2J" not in cli("partitions", "orders").out


def test_the_help_has_an_example(cli):
    assert "s3queue partitions orders" in cli("partitions", "--help").out
