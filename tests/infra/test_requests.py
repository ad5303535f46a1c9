"""The real library, run under the synthesized roles: all that it sends is allowed, and all that is allowed it sends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import count, product
from types import SimpleNamespace
from typing import Any

import pytest
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function

from s3queue import Breaker, Flow, Queue, QueueSettings, Reject, define
from s3queue.documents.sends import Send
from s3queue.errors import Unavailable
from s3queue.idempotency import S3PersistenceLayer
from s3queue.protocol.locks import Lock
from s3queue.store import Written
from s3queue.stores.memory import MemoryStore
from support.killed_store import Killed
from support.role_store import RoleStore
from support.stack_variant import KEY, Synthesize, Variant
from support.workbench import Workbench

FINE, REJECT, FAIL = {"do": "fine"}, {"do": "reject"}, {"do": "fail"}


@pytest.fixture(scope="module", params=["", KEY], ids=["S3's key", "a customer's key"])
def stack(request: pytest.FixtureRequest, synthesize: Synthesize) -> Variant:
    return synthesize(kms_key=request.param)


class Deployed:
    """The worker of emails and the sweeper, each under its own role, over one bucket."""

    def __init__(self, stack: Variant) -> None:
        self.bench = Workbench()
        self.producer = self.bench.queue("emails")
        self.as_worker = RoleStore(self.bench.memory, stack.template.role_of("s3queue-emails"), stack.bucket)
        self.as_sweeper = RoleStore(self.bench.memory, stack.template.role_of("s3queue_sweeper"), stack.bucket)
        self.worker = self._queue(self.as_worker)
        self.dispatched: list[str] = []
        self.sweeper = self.bench.sweeper(self._queue(self.as_sweeper), self.dispatched, counts_hour=True)
        self.sweeper.schedules = ()

    def _queue(self, store: RoleStore) -> Queue:
        settings = QueueSettings.of(
            max_attempts=2,
            dead_retention=3600,
            record_retention=3600,
            keep_payload=True,
            rate="1000/min",
            breaker=Breaker(),
        )
        return Queue(store=store, name="emails", settings=settings, clock=self.bench.clock, chance=self.bench.chance)

    def run(self, path: str) -> str | None:
        def handle(body: dict[str, str]) -> None:
            if body == REJECT:
                raise Reject("no")
            if body == FAIL:
                raise ValueError("again")

        return self.bench.processor(self.worker, handle).run(path, read_first=True)

    def sweep(self) -> None:
        self.sweeper.sweep()
        while self.dispatched:
            self.run(self.dispatched.pop(0))

    def settle(self) -> None:
        """Let hours pass, with a sweep now and then, until every message came to its end."""
        for hours in (0, 0.1, 0.1, 0.1, 2, 30, 30):
            self.bench.clock.advance(hours * 3600)
            self.sweep()
        assert not [key for kind in ("messages", "delayed", "leases") for key in self.bench.keys(f"emails/{kind}/")]


def a_day(day: Deployed) -> None:
    """Everything that can happen to a message, and to those who work on it."""
    producer = day.producer
    assert day.run(producer.enqueue(FINE)) == "completed"
    assert day.run(producer.enqueue(REJECT)) == "dead"
    # Anyone may PUT any key; no lease can name this one, so it is buried.
    day.bench.memory.put("emails/delayed/tomorrow/x", b"{}")
    assert day.run("delayed/tomorrow/x") is None
    day.run(producer.enqueue(FAIL))
    # It finds its own failure again, and the reminder is of no use any more.
    day.bench.clock.advance(60)
    for claim in day.worker.claim_next():
        day.worker.fail(claim, "again")
    for path in producer.enqueue_many([FINE, REJECT, FAIL]):
        day.run(path)
    producer.enqueue(FINE, delay=30)
    # Claimed by a worker that is never heard of again; released by one that had to go.
    assert day.worker.claim(producer.enqueue(FINE))
    claim = day.worker.claim(producer.enqueue(FINE))
    assert claim
    day.worker.release(claim)
    # Its event was lost.
    producer.enqueue(FINE)
    with Lock(day.as_worker, day.worker.keys.lock("one"), clock=day.bench.clock):
        pass
    charge_once(day)
    # An id that counts for a while; its marker is left behind.
    assert day.run(producer.enqueue(FINE, dedup_id="order-17", dedup_for=60)) == "completed"
    # A group: one message fails and holds it up, one dies, the others complete, together.
    for body in (FINE, FAIL, REJECT, FINE):
        in_group = producer.enqueue(body, group="customer-42")
    day.run(in_group)
    producer.pause()
    day.worker.refresh()
    producer.resume()
    # One schedule for today, and one of an earlier deployment's code.
    producer.every("20 10 * * *", name="report", body=FINE)
    former = define("emails")
    former.every("0 0 1 1 *", name="former", body=FINE)
    day.sweeper.schedules = former.schedules
    day.sweep()
    day.sweeper = day.bench.sweeper(day.sweeper.queue, day.dispatched, counts_hour=True)
    day.sweeper.schedules = ()
    # A pull worker, somewhere, that went silent.
    day.bench.memory.put("emails/workers/gone", b"{}")
    day.settle()


def charge_once(day: Deployed) -> None:
    """A handler that uses Powertools' Idempotency: one call succeeds and is repeated, another fails."""
    # By the real clock, because Powertools stamps its records with it.
    layer = S3PersistenceLayer(day.as_worker, day.worker.keys)
    config = IdempotencyConfig(lambda_context=SimpleNamespace(get_remaining_time_in_millis=lambda: 10_000))

    @idempotent_function(data_keyword_argument="order", persistence_store=layer, config=config)
    def charge(*, order: str) -> str:
        if order == "broken":
            raise ValueError(order)
        return order

    for _ in range(2):
        assert charge(order="one") == "one"
    with pytest.raises(ValueError, match="broken"):
        charge(order="broken")


def crashes(day: Deployed, body: dict[str, str], delay: float, requests: int) -> bool:
    """One message whose worker dies after so many requests; whether it did."""
    path = day.producer.enqueue(body, delay=delay or None)
    day.bench.clock.advance(2 * delay)
    day.as_worker.requests_left = requests
    try:
        day.run(path)
        died = False
    except Killed:
        died = True
    day.as_worker.requests_left = None
    day.settle()
    return died


@pytest.fixture(scope="module")
def sent(stack: Variant) -> list[Deployed]:
    """All that was sent on a day like any other, and when a worker died between any two requests."""
    days = [Deployed(stack)]
    a_day(days[0])
    for body, delay in product((FINE, REJECT, FAIL), (0, 1)):
        for requests in count():
            days.append(Deployed(stack))
            if not crashes(days[-1], body, delay, requests):
                break
    return days


def used(stores: Iterable[RoleStore]) -> dict[str, set[str]]:
    together: dict[str, set[str]] = defaultdict(set)
    for store in stores:
        for kind, letters in store.used.items():
            together[kind] |= letters
    return together


def test_no_request_of_a_worker_or_the_sweeper_is_refused(sent: list[Deployed]) -> None:
    assert len(sent) > 10
    assert [refused for day in sent for refused in day.as_worker.refused + day.as_sweeper.refused] == []


def test_a_worker_is_allowed_nothing_that_it_never_does(sent: list[Deployed]) -> None:
    from infra.permissions import LIMITED, WORKER

    seen = used(day.as_worker for day in sent)
    assert seen.pop("queue-breaker.json") == {"g", "p"}
    seen["dead"].add("g")  # a HEAD, after a copy beyond 5 GB
    seen["done"].add("g")
    seen["results"].add("p")  # for handlers: functions/queues/thumbnails.py
    assert {kind: "".join(sorted(letters)) for kind, letters in seen.items() if kind != "queue.json"} == {
        kind: "".join(sorted(letters)) for kind, letters in {**WORKER, **LIMITED}.items()
    }


def test_the_sweeper_is_allowed_nothing_that_it_never_does(sent: list[Deployed]) -> None:
    from infra.permissions import SWEEPER

    seen = used(day.as_sweeper for day in sent)
    seen["dead"].add("g")
    seen["done"].add("g")
    documents = ("queue.json", "stats.json")
    assert {kind: "".join(sorted(letters)) for kind, letters in seen.items() if kind not in documents} == {
        kind: "".join(sorted(letters)) for kind, letters in SWEEPER.items()
    }
    assert "".join(sorted(seen["stats.json"])) == "gp", "a new process goes on with the last hour"


def test_a_handler_that_enqueues_is_allowed_what_that_takes_and_nothing_more(synthesize: Synthesize) -> None:
    from infra.permissions import SENDER

    stack, bench = synthesize(sends_to={"emails": ("webhooks",)}), Workbench()
    unanswered = Unanswered(bench.memory)
    store = RoleStore(unanswered, stack.template.role_of("s3queue-emails"), stack.bucket)
    settings = QueueSettings.of(max_depth=100)
    target = Queue(store=store, name="webhooks", settings=settings, clock=bench.clock, chance=bench.chance)
    # Nobody has counted it yet, and nobody has configured it.
    sent = [target.enqueue(FINE), target.enqueue(FINE, delay=60), *target.enqueue_many([FINE, FINE])]
    sent.append(target.enqueue(FINE, dedup_id="order-17"))
    sent.append(target.enqueue(FINE, dedup_id="order-18", dedup_for=60))
    assert target.enqueue(FINE, dedup_id="order-18", dedup_for=60) == sent[-1]
    bench.queue("webhooks").pause()
    bench.clock.advance(60)
    unanswered.answers = 0
    sent.append(target.enqueue(FINE))
    unanswered.answers = 0
    sent.append(target.enqueue(FINE, delay=60))
    unanswered.answers, unanswered.stores = 0, False
    sent.append(target.enqueue(FINE, name="mine"))

    assert store.refused == []
    assert set(bench.keys("webhooks/")) == {f"webhooks/{path}" for path in sent} | {
        "webhooks/queue.json",
        target.keys.dedup("order-18"),
    }
    documents = ("queue.json", "stats.json")
    assert {kind: "".join(sorted(letters)) for kind, letters in store.used.items() if kind not in documents} == SENDER
    assert {kind for kind in store.used if kind in documents} == set(documents)


def test_sends_are_allowed_to_the_worker_and_to_the_sweeper_and_nothing_more(synthesize: Synthesize) -> None:
    """Whoever finishes the message stores them, so both may; and the sweeper stores nowhere else."""
    from infra.permissions import FOUND_OUTBOX, FOUND_SENDS, OUTBOX

    stack = synthesize(sends_to={"emails": ("webhooks",)})
    days = []
    for requests in count():
        day = Deployed(stack)
        days.append(day)
        path = day.producer.enqueue(FINE)
        claim = day.worker.claim(path)
        assert claim
        now = day.bench.clock.now()
        sends = [Send.of("webhooks", "x" * 70_000, now=now), Send.of("webhooks", FINE, now=now, delay=60)]
        day.as_worker.requests_left = requests
        try:
            day.worker.complete(claim, sends=sends)
            break
        except Killed:
            day.as_worker.requests_left = None
            day.bench.clock.advance(300)
            day.sweeper.sweep()
        if requests > 1:
            assert len(day.bench.keys("webhooks/")) == 2, requests

    assert len(days) > 5
    assert [refused for day in days for refused in day.as_worker.refused + day.as_sweeper.refused] == []
    seen, found = used(day.as_worker for day in days), used(day.as_sweeper for day in days)
    assert seen["outbox"] == set(OUTBOX["outbox"])
    assert found["outbox"] == set(FOUND_OUTBOX["outbox"])
    role = stack.template.role_of("s3queue_sweeper")
    for kind in FOUND_SENDS:
        assert role.may("s3:PutObject", f"{stack.bucket}/webhooks/{kind}/x")
    # Into its own delayed/ it puts what schedules fire.
    assert not role.may("s3:PutObject", f"{stack.bucket}/emails/messages/x")
    assert not role.may("s3:PutObject", f"{stack.bucket}/emails/outbox/x")
    assert not role.may("s3:GetObject", f"{stack.bucket}/webhooks/outbox/x")


def test_flows_are_allowed_to_workers_and_the_sweeper_and_nothing_more(synthesize: Synthesize) -> None:
    """Whoever finishes the last member stores the step; whoever dies meanwhile is repaired by the sweeper."""
    stack = synthesize(sends_to={"emails": ("webhooks",)}, flows=["emails"])
    days = []
    for requests in count():
        day = Deployed(stack)
        days.append(day)
        for access in (day.worker, day.sweeper.queue):
            access.flows, access.sends_to = True, ("webhooks",)
        flow, within = Flow(day.producer, id="f", on_dead="continue"), Flow(day.producer)
        within.add("emails", FINE)
        within.then("emails", FINE)
        flow.add("emails", REJECT)
        flow.add(within)
        flow.then("webhooks", FINE, delay=60)
        flow.start()
        if requests == 0:
            # Its starter died after the document.
            for key in [*day.bench.keys("flows/"), *day.bench.keys("emails/")]:
                if key not in ("flows/f/flow.json", "emails/flows/f"):
                    day.bench.memory.delete(key)
        day.as_worker.requests_left = 1000 if requests == 0 else 3 * requests
        try:
            for key in day.bench.keys("emails/messages/"):
                day.run(key.removeprefix("emails/"))
            died = False
        except Killed:
            died = True
        day.as_worker.requests_left = None
        for _ in range(8):
            day.bench.clock.advance(600)
            day.sweep()
        assert len(day.bench.keys("webhooks/")) == 1, requests
        if requests and not died:
            break

    assert len(days) > 5
    # A worker's own queue is not one that it may send to: a step that stays there is left to the sweeper.
    refused = {one for day in days for one in day.as_worker.refused + day.as_sweeper.refused}
    assert {one.partition("flow-")[0] for one in refused} <= {"s3:PutObject emails/messages/"}
    worker, sweeper = stack.template.role_of("s3queue-emails"), stack.template.role_of("s3queue_sweeper")
    for role in (worker, sweeper):
        assert role.may("s3:PutObject", f"{stack.bucket}/flows/f/done/0000.emails", {"s3:if-none-match": "*"})
        assert role.may("s3:DeleteObject", f"{stack.bucket}/emails/flows/f")
        assert not role.may("s3:DeleteObject", f"{stack.bucket}/flows/f/done/0000.emails")
        assert not role.may("s3:DeleteObject", f"{stack.bucket}/webhooks/flows/f")
    other = stack.template.role_of("s3queue-webhooks")
    assert not other.may("s3:GetObject", f"{stack.bucket}/flows/f/flow.json")
    assert not other.may_list(stack.bucket, "flows/f/")


def test_a_handler_may_start_flows_from_its_own_queue_and_nothing_more(synthesize: Synthesize) -> None:
    """Whoever finishes its message stores the flow, so its role and the sweeper's may."""
    stack = synthesize(sends_to={"emails": ("webhooks",)}, flows=["emails"])
    days = []
    for requests in count(1):
        day = Deployed(stack)
        days.append(day)
        for access in (day.worker, day.sweeper.queue):
            access.flows, access.sends_to = True, ("webhooks",)
        claim = day.worker.claim(day.producer.enqueue(FINE))
        assert claim
        flow, within = Flow(day.worker), Flow(day.worker)
        within.add("webhooks", FINE)
        within.then("webhooks", FINE)
        flow.add("webhooks", FINE)
        flow.add(within)
        start, _ = flow.send("emails", "started-by-a-message", {})
        day.as_worker.requests_left = requests
        try:
            day.worker.complete(claim, sends=[start])
            died = False
        except Killed:
            died = True
        day.as_worker.requests_left = None
        for _ in range(3):
            day.bench.clock.advance(600)
            day.sweep()
        if requests > 1:
            assert len(day.bench.keys("webhooks/messages/")) == 2, requests
        if not died:
            break

    assert len(days) > 8
    assert [one for day in days for one in day.as_worker.refused + day.as_sweeper.refused] == []
    worker = stack.template.role_of("s3queue-emails")
    for key in ("flows/f/flow.json", "flows/f/started", "emails/flows/f"):
        assert worker.may("s3:PutObject", f"{stack.bucket}/{key}", {"s3:if-none-match": "*"})
    assert not worker.may("s3:PutObject", f"{stack.bucket}/webhooks/flows/f", {"s3:if-none-match": "*"})
    assert not worker.may("s3:DeleteObject", f"{stack.bucket}/flows/f/flow.json")


class Unanswered:
    """A store that gives no answer to one PUT."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        #: So many more PUTs are answered; None: all.
        self.answers: int | None = None
        #: Whether the PUT without an answer is stored.
        self.stores = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put(self, key: str, body: bytes, **options: Any) -> Written:
        if self.answers is None:
            return self._inner.put(key, body, **options)
        self.answers = None
        if self.stores:
            self._inner.put(key, body, **options)
        raise Unavailable("no answer")
