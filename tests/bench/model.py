"""Past one machine: the model of `s3queue estimate`, against the shipped code in virtual time.

Thousands of messages go through the real InvocationRunner and the real Sweeper, as greenlets over a bucket in memory;
every request takes the time that the model takes it to. What the model said before is then divided by what was counted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from s3queue import Queue, Reject, Sweeper
from s3queue.costs.bill import bill_of, break_even, sqs_bill_of
from s3queue.costs.estimate import EVENT_SECONDS, Estimate, estimate
from s3queue.costs.prices import requests_cost
from s3queue.costs.requests import BILLED_AS_READS, BILLED_AS_WRITES, RequestCounts
from s3queue.costs.workload import Workload
from s3queue.deployment import SWEEPER_STAYS_SECONDS
from simulation.world import Fault, Process, ProcessClock, World
from support.counting_store import CountingStore
from support.workbench import next_tick
from support.worker_function import WorkerFunction

from .instruments.harness import Bench

QUEUE = "orders"
#: What the table of README shows.
RATES = (1, 1_000, 100_000)
BATCHES = (1, 10, 100, 1_000)
UNLIMITED = 1_000_000


@dataclass
class Steady:
    """Every request takes the same time, and is answered."""

    seconds: float

    def draw(self, process: Process, operation: str, key: str) -> Fault:
        return Fault(there=self.seconds / 2, back=self.seconds / 2)


class Bystander:
    """Watches, and stops the run at an error that no message explains."""

    def broken(self, promise: str, what: str) -> None:
        raise AssertionError(f"{promise}: {what}")

    def performed(self, *request: Any) -> None: ...
    def stepped(self) -> None: ...
    def hold(self, process: Process, claim: Any) -> None: ...
    def let_go(self, process: Process) -> None: ...


@dataclass
class Simulated:
    """An installation with one queue, and what was asked of it."""

    load: Workload
    messages: int
    seed: int
    #: Invocations at one time; more wait, and come late.
    concurrency: int = UNLIMITED
    invocations: int = 0
    late: int = 0
    busy_seconds: float = 0.0
    _idle: list[WorkerFunction] = field(default_factory=list)
    _waiting: list[tuple[tuple[str, ...], Any]] = field(default_factory=list)
    _busy: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.world = World(self.seed, Steady(self.load.seconds_per_request), Bystander())
        self.store = CountingStore(self.world.store)
        self.objects = self.messages // self.load.batch
        self.seconds = self.objects / self.load.objects
        self._ended = 0

    def run(self) -> Simulated:
        producer = Process("producer")
        arrivals = sorted(self.random.uniform(0, self.seconds) for _ in range(self.objects))
        for at in arrivals:
            self.world.spawn(producer, self._produce, self._queue(producer), after=at)
        self._sweep()
        self.world.run(self.seconds)
        self.world.run(30 * self.seconds, done=self._is_done)
        self.world.close()
        self.lasted = self.world.now
        return self

    def _is_done(self) -> bool:
        """Asked at every step: whatever was PUT has its record."""
        return self._busy == 0 and not self._waiting and self._ended == self.objects

    @property
    def counted(self) -> RequestCounts:
        return RequestCounts(Counter((verb.upper(), key.split("/")[1] or "root") for verb, key in self.store.log))

    @property
    def estimate(self) -> Estimate:
        # As late as events came here: how long a burst has to wait is not the model's to say.
        return estimate(replace(self.load, throttled=min(self.late / self.objects, 1 - self.load.rescued)))

    @property
    def predicted(self) -> RequestCounts:
        return self.estimate.requests * self.seconds + self.estimate.sweeping * self.lasted

    def _queue(self, process: Process) -> Queue:
        return Queue(
            store=self.store,
            name=QUEUE,
            settings=self.load.settings,
            worker_id=process.name,
            clock=ProcessClock(self.world, process),
            chance=self.world.chance,
        )

    # Producers and events

    def _produce(self, queue: Queue) -> None:
        bodies = [{"n": number} for number in range(self.load.batch)]
        path = queue.enqueue(bodies[0]) if len(bodies) == 1 else queue.enqueue_many(bodies, per_object=len(bodies))[0]
        notified_at = queue.clock.now()
        if self.random.random() >= self.load.rescued:
            after = self.random.uniform(0, 2 * EVENT_SECONDS)
            self.world.at(self.world.now + after, lambda: self._ring((path,), notified_at))

    # The worker function

    def _ring(self, paths: tuple[str, ...], notified_at: Any) -> None:
        self._waiting.append((paths, notified_at))
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._busy < self.concurrency:
            self._busy += 1
            function = self._idle.pop() if self._idle else self._environment()
            self.world.spawn(Process(function.queue.worker_id), self._invoke, function, *self._waiting.pop(0))

    def _environment(self) -> WorkerFunction:
        process = Process(f"function-{self.seed}-{self.invocations}")
        return WorkerFunction(self._queue(process), self._handle)

    def _handle(self, body: dict[str, Any]) -> None:
        self.world.sleep(self.load.handler_seconds)
        if self.random.random() < self.load.dead:
            raise Reject("never")
        if self.random.random() < self.load.retries:
            raise ConnectionError("not this time")

    def _invoke(self, function: WorkerFunction, paths: Sequence[str], notified_at: Any) -> None:
        began = self.world.now
        self.invocations += 1
        late_after = self.load.settings.late_after
        self.late += notified_at is not None and function.queue.clock.now() - notified_at > late_after
        outcomes = function.invoke(*paths, notified_at=notified_at)
        self._ended += outcomes.get("completed", 0) + outcomes.get("dead", 0)
        self.busy_seconds += self.world.now - began
        self._busy -= 1
        self._idle.append(function)
        self._wake()

    # The sweeper function

    def _sweep(self) -> None:
        process = Process("sweeper")
        sweeper = Sweeper(queue=self._queue(process), dispatch=lambda paths: self._ring(tuple(paths), None))

        def minute() -> None:
            until = self.world.now + SWEEPER_STAYS_SECONDS
            pause = next_tick(sweeper)
            while pause is not None and self.world.now + pause < until:
                self.world.sleep(pause)
                pause = next_tick(sweeper)

        for start in range(0, int(30 * self.seconds), 60):
            self.world.spawn(process, minute, after=start + self.random.uniform(0, 1))


def dollars(spent: RequestCounts) -> float:
    return requests_cost(puts=spent.total(BILLED_AS_WRITES), gets=spent.total(BILLED_AS_READS))


CASES = {
    "10,000 single messages, 2 % retried": (Workload(rate=50, retries=0.02, dead=0.001), 10_000, UNLIMITED),
    "10,000 in batches of 10, 2 % retried": (Workload(rate=200, batch=10, retries=0.02, dead=0.001), 10_000, UNLIMITED),
    "500 messages an hour, 5 % retried": (Workload(rate=500 / 3600, retries=0.05), 1_000, UNLIMITED),
    "a burst of 1,500 behind a concurrency of 10": (Workload(rate=300), 1_500, 10),
    "1 % of the events lost": (Workload(rate=20, rescued=0.01), 2_000, UNLIMITED),
}


def run(bench: Bench) -> None:
    with bench.part("model", "The model, against the shipped code in virtual time") as part:
        for what, (load, messages, concurrency) in CASES.items():
            runs = [Simulated(load, messages, seed, concurrency=concurrency).run() for seed in range(bench.repetitions)]
            _compare(bench, what, runs)
        bench.note(
            "Functions that drain a burst lose 7 % of their claims to one another; the model has that from here."
        )
        part.raw["table"] = [_row(rate, batch) for rate in RATES for batch in BATCHES]
        part.raw["break_even"] = {
            rate: {name: break_even(Workload(rate=rate), batched=name == "tens") for name in ("singles", "tens")}
            for rate in (1, 10, 100, 1_000, 10_000, 100_000)
        }


def _compare(bench: Bench, what: str, runs: Sequence[Simulated]) -> None:
    """Predicted, and counted: requests, dollars, and the seconds of functions."""
    pairs: dict[str, list[tuple[float, float]]] = {"requests": [], "S3 dollars": [], "function seconds": []}
    for one in runs:
        asked, counted = one.predicted, one.counted
        pairs["requests"].append((asked.total(), counted.total()))
        pairs["S3 dollars"].append((dollars(asked), dollars(counted)))
        pairs["function seconds"].append((one.estimate.worker.concurrency * one.seconds, one.busy_seconds))
    for unit, values in pairs.items():
        bench.pair(f"{what}: {unit}", values, "counted", unit="$" if "dollars" in unit else "")
    bench.parts[-1].raw[what] = {
        "predicted": [_counts(one.predicted) for one in runs],
        "counted": [_counts(one.counted) for one in runs],
    }


def _counts(spent: RequestCounts) -> dict[str, float]:
    return {f"{verb} {kind}": round(count, 1) for (verb, kind), count in sorted(spent.counts.items())}


def _row(rate: float, batch: int) -> dict[str, Any]:
    """A line of README's table: who can batch sends SQS tens as well."""
    found = estimate(Workload(rate=rate, batch=batch))
    ours, theirs = bill_of(found), sqs_bill_of(found, batched=batch > 1)
    return {
        "rate": rate,
        "batch": batch,
        "busiest": max(
            ({"kind": one.kind, "writes": one.writes, "reads": one.reads} for one in found.prefixes), key=_sum
        ),
        "shards": found.shards,
        "concurrency": found.worker.concurrency,
        "per_million": ours.per_million,
        "sqs_per_million": theirs.per_million,
        "cheaper": "s3queue" if ours.total <= theirs.total else "SQS",
    }


def _sum(prefix: dict[str, Any]) -> float:
    return float(prefix["writes"] + prefix["reads"])
