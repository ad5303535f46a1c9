"""What a message costs, request by request: the numbers of the README and of a bill, counted."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from s3queue import Flow, Queue, Retry, Worker
from s3queue.protocol.liveness import HeartbeatWriter
from support.virtual_processes import Process, VirtualProcesses
from support.workbench import Workbench, next_tick


def test_an_enqueue_is_one_put(bench):
    queue = bench.queue()

    queue.enqueue({"a": 1}, priority=9, metadata={"from": "test"})
    assert bench.store.take() == {"put": 1}

    queue.enqueue({"a": 1}, delay=60)
    assert bench.store.take() == {"put": 1}

    queue.enqueue({"a": 1}, dedup_id="order 4711")
    assert bench.store.take() == {"put": 1}


def test_the_happy_path_is_two_puts_one_get_and_two_free_deletes(bench):
    queue = bench.queue()
    path = queue.enqueue({"a": 1})
    bench.store.take()

    assert bench.processor(queue, lambda body: "done").run(path) == "completed"

    assert bench.store.log == [
        ("put", f"orders/leases/{path}"),
        ("get", f"orders/{path}"),
        ("put", f"orders/records/{path}"),
        ("delete", f"orders/{path}"),
        ("delete", f"orders/leases/{path}"),
    ]
    assert bench.store.billed == 3


def test_a_message_in_a_busy_partition_is_a_put_and_a_get_and_less_than_a_tenth_of_the_rest(bench):
    queue = bench.queue(partitions=1)
    for number in range(1000):
        path = queue.enqueue({"number": number})
    assert bench.store.take() == {"put": 1000}

    bench.processor(queue, lambda body: None).run(path)

    counts = bench.store.take()
    assert counts == {"get": 1000 + 2, "put": 11 + 10, "delete_many": 10, "delete": 1, "list": 3}
    assert 1000 * (0.4 + 5) + 2 * 0.4 + (21 + 3) * 5 <= 1000 * 5.55


def test_a_message_alone_in_a_partition_costs_more_than_one_with_its_own_lease(bench):
    queue = bench.queue(partitions=1)
    path = queue.enqueue({"a": 1})
    bench.store.take()

    bench.processor(queue, lambda body: None).run(path)

    assert bench.store.take() == {"get": 3, "put": 3, "list": 2, "delete": 2}


def test_a_kept_payload_is_one_copy_more(bench):
    queue = bench.queue(keep_payload=True)
    path = queue.enqueue({"a": 1})
    bench.store.take()

    assert bench.processor(queue, lambda body: "done").run(path) == "completed"

    assert bench.store.log == [
        ("put", f"orders/leases/{path}"),
        ("get", f"orders/{path}"),
        ("put", f"orders/records/{path}"),
        ("copy", f"orders/done/{path}"),
        ("delete", f"orders/{path}"),
        ("delete", f"orders/leases/{path}"),
    ]


def test_a_replay_of_a_completed_message_is_one_put_three_gets_and_two_heads(bench):
    queue = bench.queue(keep_payload=True)
    path = queue.enqueue({"a": 1})
    bench.processor(queue, lambda body: "done").run(path)
    seen = queue.status(path).record
    bench.clock.advance(2)
    bench.store.take()

    queue.replay(path, of=seen)

    assert bench.store.take() == {"head": 2, "get": 3, "put": 1}


def test_without_history_the_happy_path_is_one_put_and_one_get(bench):
    queue = bench.queue(history=False)
    path = queue.enqueue({"a": 1})
    bench.store.take()

    bench.processor(queue, lambda body: "done").run(path)

    assert bench.store.take() == {"put": 1, "get": 1, "delete": 2}


def test_a_batch_of_a_hundred_costs_what_one_message_costs(bench):
    queue = bench.queue()
    seen = []

    (path,) = queue.enqueue_many([{"n": number} for number in range(100)], per_object=100)
    assert bench.store.take() == {"put": 1}

    bench.processor(queue, lambda body: seen.append(body["n"])).run(path)
    assert bench.store.take() == {"put": 2, "get": 1, "delete": 2}
    assert seen == list(range(100))


def test_a_send_is_one_put_and_the_sent_message_one_get_more(bench):
    queue, target = bench.queue(), bench.queue("emails")
    path = queue.enqueue({"a": 1})
    bench.store.take()
    processor = bench.processor(queue, lambda body, context: context.send("emails", body), sends_to=["emails"])

    assert processor.run(path) == "completed"
    assert bench.store.take() == {"put": 3, "get": 1, "delete": 2}

    (sent,) = (key.removeprefix("emails/") for key in bench.keys("emails/"))
    assert bench.processor(target, lambda body: None).run(sent) == "completed"
    assert bench.store.take() == {"put": 2, "get": 2, "delete": 2}


def test_a_retry_is_three_puts_and_three_gets_more(bench):
    queue = bench.queue()
    path = queue.enqueue(b"x")
    bench.store.take()
    tries = iter([ValueError("first try"), None])

    def fails_once(_body: bytes) -> None:
        if error := next(tries):
            raise error

    processor = bench.processor(queue, fails_once)
    assert processor.run(path) == "retried"
    bench.clock.advance(10)
    assert processor.run(path, read_first=True) == "completed"

    happy = {"put": 2, "get": 1, "delete": 2}
    assert bench.store.take() == happy | {"put": happy["put"] + 3, "get": happy["get"] + 3}


def test_a_death_is_two_puts_a_head_and_a_copy_more_than_the_attempt_that_led_to_it(bench):
    queue = bench.queue(max_attempts=1)
    path = queue.enqueue(b"x")
    claim = queue.claim(path)
    assert claim
    bench.store.take()

    queue.fail(claim, "no good")

    assert bench.store.log == [
        ("put", f"orders/leases/{path}"),
        ("put", f"orders/records/{path}"),
        ("head", f"orders/dead/{path}"),
        ("copy", f"orders/dead/{path}"),
        ("delete", f"orders/{path}"),
        ("delete", f"orders/leases/{path}"),
    ]


def test_a_lost_claim_is_one_put(bench):
    queue = bench.queue()
    path = queue.enqueue(b"x")
    assert queue.claim(path)
    bench.store.take()

    assert bench.queue(worker_id="rival").claim(path) is None

    assert bench.store.take() == {"put": 1}


def test_a_duplicate_event_of_a_finished_message_is_one_put_one_get_and_a_free_delete(bench):
    queue = bench.queue()
    path = queue.enqueue(b"x")
    queue.complete(queue.claim(path))
    bench.store.take()

    assert queue.claim(path) is None

    assert bench.store.take() == {"put": 1, "get": 1, "delete": 1}


def test_an_idle_queue_costs_one_list_a_sweep_and_nothing_in_between(bench):
    queue = bench.queue()
    path = queue.enqueue(b"x")
    queue.complete(queue.claim(path))
    sweeper = bench.sweeper(queue)
    sweeper.sweep()  # publishes once that nothing is left
    bench.store.take()

    for _ in range(10):
        bench.clock.advance(60)
        assert next_tick(sweeper) is None

    assert bench.store.take() == {"list": 10}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_pull_worker_drains_with_at_most_one_list_per_hundred_messages(bench, concurrency):
    queue = bench.queue(visibility_timeout=600)
    for number in range(5000):
        queue.enqueue(json.dumps(number))
    bench.store.take()
    seen = []

    worker = Worker(queue, lambda body: seen.append(body), concurrency=concurrency, sweep=False)
    worker.run_until_empty()

    assert sorted(seen) == list(range(5000))
    spent = bench.store.take()
    assert spent["list"] <= 50
    # Nothing hidden behind the LISTs either: three billed requests a message, and a few for the worker itself.
    assert spent["put"] + spent["get"] + spent.get("head", 0) <= 3 * 5000 + 50


def test_a_backlog_is_drained_by_claim_next_with_one_list_per_hundred_too(bench):
    queue = bench.queue()
    for number in range(1000):
        queue.enqueue(json.dumps(number))
    bench.store.take()

    claims = queue.claim_next(1000)

    assert len({claim.path for claim in claims}) == 1000
    assert bench.store.take()["list"] <= 10


@pytest.mark.parametrize("state", ["waiting to be claimed", "at work", "half and half"])
def test_a_sweep_of_ten_thousand_healthy_messages_is_at_most_25_requests(bench, state):
    queue = bench.queue(visibility_timeout=600)
    for number in range(10_000):
        path = queue.enqueue(b"x")
        if state == "at work" or (state == "half and half" and number % 2):
            assert queue.claim(path)
    bench.clock.advance(5)
    bench.store.take()

    report = bench.sweeper(queue).sweep()

    assert sum(bench.store.take().values()) <= 25
    assert report.complete
    assert report.stats.pending + report.stats.processing == 10_000


def test_a_sweep_reads_a_lease_once_that_is_not_over_yet(bench):
    queue = bench.queue(visibility_timeout=30)
    paths = [queue.enqueue(b"x") for _ in range(20)]
    for path in paths:
        assert queue.claim(path, timeout=3600)
    sweeper = bench.sweeper(queue)
    bench.clock.advance(60)
    sweeper.sweep()
    bench.store.take()

    for _ in range(5):
        bench.clock.advance(60)
        sweeper.sweep()

    assert not [key for verb, key in bench.store.log if verb == "get" and "/leases/" in key]


def test_reporting_progress_all_the_time_costs_one_put_every_few_seconds(bench):
    queue = bench.queue()
    path = queue.enqueue(b"x")

    def chatty(_body: bytes, context) -> None:
        for step in range(100):
            context.progress(step / 100, "working")
            bench.clock.advance(0.1)

    bench.store.take()
    bench.processor(queue, chatty).run(path)

    assert bench.store.take()["put"] <= 2 + 3


def test_a_handler_that_asks_to_wait_costs_what_a_failure_costs(bench):
    queue = bench.queue()
    path = queue.enqueue(b"x")
    bench.store.take()

    def later(_body: bytes) -> None:
        raise Retry("later", after=5)

    bench.processor(queue, later).run(path)

    assert bench.store.take() == {"put": 3, "get": 1}


def _awake(bench: Workbench, queue: Queue, work: Process) -> Counter[str]:
    """Ten minutes of a sweeper function that is invoked every minute; what it asked."""
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper", visibility_timeout=queue.settings.visibility_timeout))

    def minutes() -> Process:
        ends = bench.clock.monotonic() + 54
        while True:
            pause = next_tick(sweeper)
            if pause is None or bench.clock.monotonic() + pause >= ends:
                pause = ends + 6 - bench.clock.monotonic()
                ends += 60
            yield pause

    processes = VirtualProcesses(bench.clock)
    processes.start(minutes())
    processes.start(work, after=0.3)
    processes.run(60)
    bench.store.take()
    processes.run(600)
    own = ("/workers/", "/leases/", ".json")
    spent = Counter(verb for verb, key in bench.store.log if verb == "get" and any(part in key for part in own))
    return spent + Counter(verb for verb, key in bench.store.log if verb == "list" or key.endswith("stats.json"))


@pytest.mark.parametrize("timeout", [5, 30])
def test_a_sweeper_that_watches_every_lease_costs_a_healthy_queue_no_more_than_one_that_does_not(bench, timeout):
    queue = bench.queue(visibility_timeout=timeout)

    def work() -> Process:
        while True:
            claim = queue.claim(queue.enqueue(b"x"))
            yield 1.0
            queue.complete(claim)
            yield 0.2

    # Counted before it did: 310 LISTs, 76 GETs (queue.json), 20 PUTs.
    spent = _awake(bench, queue, work())
    assert spent["list"] <= 310
    assert spent.total() <= 406


def test_watching_a_heartbeat_costs_one_get_per_visibility_timeout(bench):
    queue = bench.queue(visibility_timeout=30)
    heartbeat = HeartbeatWriter(queue, queue.settings.visibility_timeout)

    def work() -> Process:
        heartbeat.hold(queue.claim(queue.enqueue(b"x")))
        while True:
            heartbeat.beat({})
            yield 10.0

    _awake(bench, queue, work())

    looks = [key for verb, key in bench.store.log if verb == "get" and ("/workers/" in key or "/leases/" in key)]
    assert len(looks) <= 600 / 20


def test_a_flow_of_three_members_and_one_step_costs_what_the_document_says(bench):
    queue = bench.queue()
    flow = Flow(queue)
    for _ in range(3):
        flow.add("orders", {})
    flow.then("orders", {})
    flow.start()
    # Marker, document, three messages, started.
    assert bench.store.take() == {"put": 6}

    processor = bench.processor(queue, lambda body: None)
    paths = [key.removeprefix("orders/") for key in bench.keys("orders/messages/")]
    processor.run(paths[0])
    # More than any message: GET its record, since a PUT of it may be late; PUT its outcome, HEAD the last member's.
    assert bench.store.take() == {"put": 3, "get": 2, "head": 1, "delete": 2}
    processor.run(paths[1])
    assert bench.store.take() == {"put": 3, "get": 2, "head": 1, "delete": 2}
    processor.run(paths[2])
    # The last one finds both others; LIST, GET flow, PUT decision, PUT the step's message.
    assert bench.store.take() == {"put": 5, "get": 3, "head": 2, "list": 1, "delete": 2}
    (step,) = bench.keys("orders/messages/")
    processor.run(step.removeprefix("orders/"))
    # GET flow, GET the decision on it, PUT decision, DELETE marker.
    assert bench.store.take() == {"put": 4, "get": 4, "delete": 3}
