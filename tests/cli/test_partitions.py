"""partitions: who holds a group, and what holds it up."""

from __future__ import annotations

import json
from functools import reduce
from operator import getitem

from s3queue import Retry, Worker
from s3queue.cli.commands.tail import Watcher, _line
from s3queue.flow.partitions import hold_partition
from support.forged_documents import forgeries, places, with_value

#: Clears the screen, sets the title, rings, overrides the direction of text, moves the cursor by a C1 sequence.
HOSTILE = "\x1b[2J\x1b]0;owned\x07 \u202eevil\x9b31m\r\x08"


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


def documents(cli):
    """The lease of a partition with a failed message, one that was taken and one that ended; and a journal."""
    fails(cli, "a")
    queue = cli.queue()
    lease = json.loads(queue.store.open("orders/leases/@a").read())
    other = queue.enqueue(json.dumps("x"), group="b")
    Worker(cli.queue(), lambda body: None).run_until_empty()
    (journal,) = queue.store.list("orders/records/@b/").objects
    records = queue.store.open(journal.key).read()
    lease |= {"state": "processing", "taken": {other: "etag"}, "ended": json.loads(records)["records"], "journal": "x"}
    return {"orders/leases/@a": json.dumps(lease).encode(), journal.key: records}


def test_partitions_and_tail_answer_beside_forged_state(cli):
    real = documents(cli)
    store = cli.queue().store
    for key, whole in real.items():
        for forged in [whole, *forgeries(whole, seed=5, few=40)]:
            watcher = Watcher(cli.queue())
            watcher.poll()
            store.put("orders/messages/@b/new", b"x")
            store.delete(key)
            store.put(key, forged)
            said = [_line(event, cli.queue().keys).plain for event in watcher.poll()]
            assert any("messages/@b/new" in line for line in said)
            assert all(line.isprintable() for line in said), said
            store.delete("orders/messages/@b/new")
            for more in ((), ("--json",), ("--group", "a")):
                assert "Traceback" not in cli("partitions", "orders", *more).err
        store.put(key, whole)


def test_whatever_text_lies_in_a_lease_it_cannot_steer_the_terminal(cli):
    key, real = next(iter(documents(cli).items()))
    store, document = cli.queue().store, json.loads(real)
    store.put(f"orders/messages/@{HOSTILE}/x", b"x")
    store.put("orders/messages/@~/x", b"x")
    texts = [at for at in places(document) if isinstance(reduce(getitem, at, document), str)]
    for forged in [with_value(real, at, json.dumps(HOSTILE)) for at in texts]:
        store.put(key, forged)
        for more in ((), ("--json",), ("--limit", "1")):
            ran = cli("partitions", "orders", *more, code=None)
            said = (ran.out + ran.err).replace("\n", "")
            assert not set(HOSTILE) & set("\x1b\x07\u202e\x9b\r\x08") & set(said), (forged, said)
