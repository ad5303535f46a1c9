"""What a handler sends into groups and partitions exists once, and runs in order.  [P7] [P9]"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from itertools import pairwise
from uuid import UUID

import pytest

from s3queue import Context, DeadLetters, Flow, InvalidName, InvalidRequest, Sweeper, define
from s3queue.documents.message import Generation
from s3queue.documents.record import Record
from s3queue.documents.sends import MOST_OBJECTS, Send
from s3queue.documents.sent_objects import addressed
from s3queue.paths import partition_of
from s3queue.worker.processor import Processor
from support.killed_store import Killed, KilledStore


def processor(queue, handler, sends_to=("emails",)) -> Processor:
    definition = define(queue.name, sends_to=sends_to)
    definition.handler(handler)
    queue.sends_to = definition.sends_to
    return Processor(queue=queue, definition=definition)


def sent(bench, queue: str = "emails") -> list[str]:
    return [key.removeprefix(f"{queue}/") for key in bench.keys(f"{queue}/messages/")]


def bodies(bench, queue: str = "emails") -> list:
    return [json.loads(bench.read(f"{queue}/{path}")) for path in sent(bench, queue)]


def run_all(bench, name: str = "emails") -> list:
    """Run what lies in the queue; the bodies, in the order in which they ran."""
    seen: list = []
    queue = bench.queue(name=name)
    for path in sent(bench, name):
        bench.processor(queue, seen.append).run(path, read_first=True)
    return seen


def test_the_sends_of_one_message_to_a_group_run_in_their_order(bench, queue):
    def many(body: dict, context: Context) -> None:
        for number in range(120):
            context.send("emails", {"n": number}, group="ada")

    assert processor(queue, many).run(queue.enqueue({})) == "completed"

    assert all(path.startswith("messages/@ada/") and not path.endswith(".ndjson") for path in sent(bench))
    assert [one["n"] for one in run_all(bench)] == list(range(120))
    assert sent(bench) == []


def test_what_a_group_sends_to_a_group_comes_in_the_order_of_the_senders(bench, queue):
    paths = [queue.enqueue({"n": number}, group="ada") for number in range(30)]

    def pass_on(body: dict, context: Context) -> None:
        context.send("emails", [body["n"], 0], group="ada")
        context.send("emails", [body["n"], 1], group="ada")

    processor(queue, pass_on).run(paths[0])

    assert bodies(bench) == [[number, index] for number in range(30) for index in range(2)]


def test_order_survives_a_chain_of_groups(bench):
    names = [f"step{number}" for number in range(9)]
    first = bench.queue(name=names[0])
    path, *_ = [first.enqueue([number], group="a") for number in range(3)]

    def twice(to: str):
        def handler(body: list, context: Context) -> None:
            for index in range(2 if len(body) < 4 else 1):
                context.send(to, [*body, index], group="a")

        return handler

    for here, there in pairwise(names):
        processor(bench.queue(name=here), twice(there), sends_to=[there]).run(path, read_first=True)
        path = sent(bench, there)[0]

    found = bodies(bench, names[-1])
    assert len(found) == 3 * 2**3
    assert found == sorted(found)


def pass_on(to: str, count: int):
    """Sends what it gets, with a number, so often."""

    def handler(body: list, context: Context) -> None:
        for index in range(count):
            context.send(to, [*body, index], group="a")

    return handler


def test_what_two_senders_of_one_second_sent_keeps_its_order_in_the_next_group(bench, queue):
    """Found by the simulation: the names of the second group said whose it was only at their end."""
    middle = bench.queue(name="middle")
    for number in range(8):
        processor(queue, pass_on("middle", 1), sends_to=["middle"]).run(queue.enqueue([number]))
    order = [one[0] for one in bodies(bench, "middle")]

    processor(middle, pass_on("emails", 2)).run(sent(bench, "middle")[0])

    assert order != sorted(order)
    assert bodies(bench) == [[number, 0, index] for number in order for index in range(2)]


NAMES = ["a", "a ", "a b", "a!", "a!b", "a-", "a-b", "a.b", "a/b", "a0", "a:b", "aä", "b", "b" * 250]


def test_the_order_of_the_senders_is_that_of_their_names_whatever_these_are(bench, queue):
    paths = [queue.enqueue([name], name=name, group="a") for name in reversed(NAMES)]

    processor(queue, pass_on("emails", 1)).run(paths[0])

    assert [one[0] for one in bodies(bench)] == sorted(NAMES, key=str.encode)


@pytest.mark.parametrize("group", ["a", "b"])
def test_two_messages_of_one_name_do_not_mix_up_what_the_next_group_gets(bench, queue, group):
    """Found by the simulation: one of the name was PUT anew while it ran, and came before what its former self had
    sent; but what it sent came behind what that sent on.
    """

    def handler(body: list, context: Context) -> None:
        if body == ["first"]:
            queue.enqueue(["second"], name="x", group="a")
            context.send(queue.name, ["sent"], group="a")
            return
        for index in range(2):
            context.send("emails", [*body, index], group="a")

    runner = processor(queue, handler, sends_to=[queue.name, "emails"])
    runner.run(queue.enqueue(["first"], name="x", group=group))
    runner.run("messages/@a/x")

    assert bodies(bench) == [["second", 0], ["second", 1], ["sent", 0], ["sent", 1]]


def test_what_a_message_sends_comes_before_what_the_messages_send_that_it_has_sent(bench, queue):
    def handler(body: list, context: Context) -> None:
        if len(body) < 3:
            context.send(queue.name, [*body, 0], group="a")
        for index in range(2):
            context.send("emails", [*body, index], group="a")

    processor(queue, handler, sends_to=[queue.name, "emails"]).run(queue.enqueue([0], group="a"))

    assert bodies(bench) == [[0] * length + [index] for length in range(1, 4) for index in range(2)]


def names_of_sends(name: str, group: str) -> list[str]:
    """Of what a message of group a sends there, and into another group."""
    generation = Generation(etag="e", put_at=datetime(2026, 11, 17, tzinfo=UTC))
    sends = [Send.of("orders", number, group=group, now=generation.put_at) for number in range(2)]
    return [
        one.path.rpartition("/")[2] for one in addressed(sends, "orders", f"messages/@a/{name}", generation, part=1)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_the_order_of_a_group_goes_on_in_the_next_whatever_was_sent_and_replayed_in_it(seed):
    """Found by the simulation: what a replay behind a sent message sent on came before what the next replay sent."""
    chance = random.Random(seed)
    group = ["z-1", "z-2"]
    for _ in range(8):
        if chance.random() < 0.4:
            # A replay goes behind the last one that is there; those before it may be done with.
            group.append(f"{max(group)}~{UUID(int=chance.getrandbits(128))}")
        else:
            group.extend(names_of_sends(chance.choice(group), "a"))
    group = [name for name in sorted({*group}) if len(name) < 150]

    assert sum(map(len, group)) > 100
    for before, after in pairwise(group):
        assert max(names_of_sends(before, "b")) < min(names_of_sends(after, "b"))


def test_a_message_that_sends_itself_on_for_ever_keeps_a_name_that_fits(bench, queue):
    names: list[str] = []

    def handler(body: int, context: Context) -> None:
        names.append(context.path.rpartition("/")[2])
        if body:
            context.send(queue.name, body - 1, group="a")

    processor(queue, handler, sends_to=[queue.name]).run(queue.enqueue(40, name="ä" * 60, group="a"))

    assert len(names) == 41
    assert names == sorted(names, key=str.encode)
    assert max(len(name.encode()) for name in names) <= 290


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("group", [None, "ada"])
def test_a_crash_at_any_request_loses_and_repeats_nothing(bench, group, late):
    """Also between the record, or the commit of the sender's group, and each PUT."""

    def handler(body: dict, context: Context) -> None:
        for number in range(3):
            context.send("emails", {"of": body["n"], "n": number}, group="ada")

    crashes = 0
    for at in range(1, 60):
        for key in bench.keys(""):
            bench.memory.delete(key)
        queue = bench.queue(worker_id=f"worker-{at}")
        paths = [queue.enqueue({"n": number}, group=group) for number in range(2)]
        dying = bench.queue(worker_id=f"dying-{at}")
        dying.store = KilledStore(bench.memory, at, late=late)
        is_killed = False
        try:
            for path in paths:
                processor(dying, handler).run(path)
        except Killed:
            is_killed = True
            crashes += 1
        ran = run_all(bench)  # part of them, before anybody repairs anything
        bench.clock.advance(120)
        dispatched: list[str] = []
        healthy = bench.queue()
        healthy.sends_to = ("emails",)
        for _ in range(4):
            Sweeper(queue=healthy, dispatch=dispatched.extend).sweep()
            for path in dict.fromkeys(dispatched):
                processor(bench.queue(), handler).run(path, read_first=True)
            dispatched.clear()
            bench.clock.advance(120)
        ran += run_all(bench)

        for number in range(2):
            assert [one["n"] for one in ran if one["of"] == number] == [0, 1, 2], (at, ran)
        if group:
            assert [one["of"] for one in ran] == [0, 0, 0, 1, 1, 1], at
        if not is_killed:
            break
    assert crashes > 5


@pytest.mark.parametrize("history", [True, False])
def test_a_put_that_comes_after_its_message_was_finished_is_cleared_not_run(bench, queue, history):
    processor(queue, lambda body, context: context.send("emails", {}, group="ada")).run(queue.enqueue({}))
    (path,) = sent(bench)
    stored = bench.memory.open(f"emails/{path}")
    content, metadata = stored.read(), dict(stored.metadata)
    emails, ran = bench.queue(name="emails", history=history), []
    bench.processor(emails, ran.append).run(path)
    bench.clock.advance(3600)
    bench.put(f"emails/{path}", content, metadata=metadata)

    bench.processor(emails, ran.append).run(path)

    assert ran == [{}]
    assert sent(bench) == []


def test_a_replay_of_a_message_that_was_sent_to_a_group_runs(bench, queue):
    processor(queue, lambda body, context: context.send("emails", {}, group="ada")).run(queue.enqueue({}))
    emails = bench.queue(name="emails", max_attempts=1)

    def bounce(body: dict) -> None:
        raise ValueError("bounced")

    bench.processor(emails, bounce).run(sent(bench)[0])
    bench.clock.advance(5)
    (letter,) = bench.keys("emails/dead/")
    DeadLetters(emails).replay(letter.removeprefix("emails/dead/"))

    assert run_all(bench) == [{}]


def test_a_send_that_is_refused_holds_the_later_ones_of_its_group_up_and_no_others(bench, queue):
    def handler(body: dict, context: Context) -> None:
        for number in range(2):
            context.send("emails", {"n": number}, group="ada")
        context.send("emails", {"n": 9}, group="bob")

    refused: list[str] = []

    def around(operation, key, perform):
        if operation == "put" and key.startswith("emails/messages/@ada/") and not refused:
            refused.append(key)
            raise InvalidRequest("no such key")
        return perform()

    bench.around = around
    path = queue.enqueue({})
    assert processor(queue, handler).run(path) == "lost"
    assert [one["n"] for one in bodies(bench)] == [9]

    bench.around = None
    bench.clock.advance(120)
    queue.sends_to = ("emails",)
    Sweeper(queue=queue, dispatch=lambda paths: None).sweep()

    assert [one["n"] for one in bodies(bench)] == [0, 1, 9]


def test_the_lines_of_a_batch_send_to_groups_one_object_each(bench, queue):
    def line(body: dict, context: Context) -> None:
        context.send("emails", {"n": body["n"]}, group=f"customer-{body['n'] % 2}")
        context.send("emails", {"copy": body["n"]})

    (path,) = queue.enqueue_many([{"n": number} for number in range(6)])
    processor(queue, line).run(path)

    grouped = [one for one in sent(bench) if partition_of(one)]
    assert len(grouped) == 6
    assert next(one for one in sent(bench) if not partition_of(one)).endswith(".ndjson")
    assert [json.loads(bench.read(f"emails/{one}"))["n"] for one in grouped] == [0, 2, 4, 1, 3, 5]


def test_more_objects_than_one_completion_can_store_are_refused_clearly(bench, queue):
    def too_many(body: dict, context: Context) -> None:
        for number in range(MOST_OBJECTS + 1):
            context.send("emails", number, group="ada")

    path = queue.enqueue({})
    assert processor(queue, too_many).run(path) == "retried"
    assert "without a group" in queue.status(path).lease.failure.message
    assert sent(bench) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priority": 5}, "no priority and no delay"),
        ({"delay": 5}, "no priority and no delay"),
        ({"group": ""}, "not valid"),
        ({"group": "x" * 900}, "too long"),
    ],
)
def test_what_breaks_the_order_of_a_group_is_refused_when_it_is_sent(bench, options, said):
    with pytest.raises((InvalidRequest, InvalidName), match=said):
        Send.of("emails", {}, now=bench.clock.now(), **({"group": "ada"} | options))


def test_a_member_of_a_flow_has_no_group(bench):
    with pytest.raises(InvalidRequest, match="no group"):
        Flow(bench.store).add("emails", {}, group="ada")


def test_a_definition_as_target_spreads_over_its_partitions(bench, queue):
    emails = define("emails", partitions=4)

    @emails.handler
    def deliver(body: dict) -> None: ...

    def handler(body: dict, context: Context) -> None:
        for number in range(20):
            context.send(emails, {"n": number})
        context.send(emails, {"urgent": True}, priority=9)

    processor(queue, handler).run(queue.enqueue({}))

    folders = {partition_of(path) for path in sent(bench)}
    assert folders >= {"@=0", "@=1"}
    assert folders <= {"", *(f"@={share}" for share in range(4))}
    assert next(path for path in sent(bench) if not partition_of(path)).startswith("messages/p009/sent-")
    assert len(run_all(bench)) == 21


def test_very_many_sends_to_a_queue_with_partitions_are_still_batches(bench, queue):
    emails = define("emails", partitions=4)
    processor(queue, lambda body, context: [context.send(emails, number) for number in range(250)] and None).run(
        queue.enqueue({})
    )

    assert [path.endswith(".ndjson") for path in sent(bench)] == [True] * 3
    assert not any(map(partition_of, sent(bench)))


def test_a_definition_as_target_checks_the_body(bench, queue):
    emails = define("emails", max_message_size=100)

    @emails.handler
    def deliver(body: dict) -> None: ...

    raised: list[str] = []

    def handler(body: dict, context: Context) -> None:
        for wrong in (b"not json", "x" * 101):
            with pytest.raises(InvalidRequest) as refused:
                context.send(emails, wrong)
            raised.append(str(refused.value))

    processor(queue, handler).run(queue.enqueue({}))

    assert "cannot take this payload" in raised[0]
    assert "max_message_size is 100" in raised[1]


def test_a_group_of_a_queue_on_spark_is_sent_to(bench, queue):
    exports = define("exports", engine="spark")

    processor(queue, lambda body, context: context.send(exports, {}, group="a"), ("exports",)).run(queue.enqueue({}))

    assert [partition_of(path) for path in sent(bench, "exports")] == ["@a"]


def test_a_queue_of_two_engines_has_no_groups(bench, queue):
    exports = define("exports", heavy_above=1000)
    path = queue.enqueue({})

    processor(queue, lambda body, context: context.send(exports, {}, group="a"), ("exports",)).run(path)

    assert "cannot have groups" in queue.status(path).lease.failure.message
    assert sent(bench, "exports") == []


@pytest.mark.parametrize(
    "place", ["messages/@/", "messages/@a/b/", "messages/@a b/", "delayed/20261116T101500Z/@a/", "messages/@"]
)
def test_a_forged_record_cannot_send_to_a_place_that_is_none(place):
    send = {"queue": "emails", "place": place, "body": "x"}
    with pytest.raises(InvalidRequest):
        Send.from_json(send)


def test_what_older_versions_recorded_keeps_its_names(bench, queue):
    """A record of the first version with sends: a repeated PUT must find the same name."""
    path = queue.enqueue({}, name="order-17")
    queue.complete(queue.claim(path), sends=[Send.of("emails", {"to": "ada"}, now=bench.clock.now())])
    record = Record.from_bytes(bench.read(f"orders/records/{path}"), path)

    assert record.sends[0].place == "messages/"
    (stored,) = sent(bench)
    assert stored.startswith(f"messages/sent-{record.generation.put_at:%Y%m%dT%H%M%SZ}-")
    assert stored.endswith("-0-0")
