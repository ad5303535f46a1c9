"""Against the documented S3 queue plugin, on the same server: requests a message, and messages a second."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from support.s3_servers import fresh_bucket, s3_client, seaweedfs_server

from .instruments.delay import Passed, Proxy, proxy
from .instruments.harness import Bench, Part
from .instruments.scene import Processed, draining, fill, queue_at
from .peers import s3db

CONCURRENCIES = (3, 10, 20, 50)
#: Seconds that each request takes longer.
DELAYS = (0.0, 0.02)
FEWER_REQUESTS, MORE_MESSAGES = 8, 10
#: Messages of ours and of theirs over which requests are counted, and how long one of these runs may take.
OUR_COUNTED, COUNTED, COUNTED_SECONDS = 200, 20, 15.0
#: One run of a rate: how long, and the messages that it can work on. The plugin hardly ever gets to the end of its own.
SECONDS, THEIR_MESSAGES = 2.0, 40
#: A plugin that has ended nothing by then is given up on.
PATIENCE = 8.0
BODY = "x" * 200
#: A message's ways to its end: (what, handler's failures before it succeeds, attempts that it has).
LIVES = (
    ("process", 0, 3),
    ("fail once, then process", 1, 3),
    ("fail and be dead", 1, 1),
)
#: What was measured before, on a machine with two cores: requests to enqueue and to process, and messages/s.
KNOWN = "measured before: 8 + 31.6 requests (25 at its best, 102 as it comes), 12.7 messages/s at 3, 0.6 at 50"


def run(bench: Bench) -> None:
    with bench.part("plugin", f"Against the documented S3 queue plugin ({s3db.NAME})") as part:
        missing = s3db.install()
        if missing:
            bench.skip(f"npm could not install {s3db.NAME}: {missing}; {KNOWN}")
        with seaweedfs_server() as endpoint, ExitStack() as stack:
            bucket = fresh_bucket(s3_client(endpoint))
            proxies = {delay: stack.enter_context(proxy(endpoint, seconds=delay)) for delay in DELAYS}
            here = Place(endpoint, bucket, proxies)
            _requests(bench, part, here, alone=bool(missing))
            _rates(bench, part, here, alone=bool(missing))


@dataclass(frozen=True, slots=True)
class Place:
    """The server that both use, and the proxies in front of it."""

    endpoint: str
    bucket: str
    proxies: dict[float, Proxy]

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class Count:
    """Requests a message, by kind."""

    by_kind: dict[str, float]

    @classmethod
    def of(cls, passed: Passed, messages: int) -> Count:
        # None ended: the requests were made all the same, for less than one message.
        return cls({kind: count / max(messages, 1) for kind, count in passed.requests.items()})

    def __add__(self, other: Count) -> Count:
        kinds = self.by_kind | other.by_kind
        return Count({kind: self.by_kind.get(kind, 0) + other.by_kind.get(kind, 0) for kind in kinds})

    @property
    def each(self) -> float:
        return sum(self.by_kind.values())

    @property
    def billed_each(self) -> float:
        """All but the deletes, which are free."""
        return self.each - self.by_kind.get("delete", 0)


@dataclass(slots=True)
class Rates:
    """Messages/s and requests a message of both, by (delay, concurrency), repetition by repetition."""

    ours: dict[tuple[float, int], list[float]] = field(default_factory=dict)
    theirs: dict[tuple[float, int], list[float]] = field(default_factory=dict)
    requests: dict[str, list[float]] = field(default_factory=dict)
    #: The share of one core that the proxy took while ours ran: near 1, it would measure itself.
    proxy_busy: list[float] = field(default_factory=list)


# Requests


def _requests(bench: Bench, part: Part, here: Place, *, alone: bool) -> None:
    """Counted at the proxy, for both alike; what a worker asks for besides its messages is in it, shared among them."""
    counter = here.proxies[0.0]
    settings: tuple[s3db.Setting, ...] = () if alone else tuple(s3db.SETTINGS)
    found: dict[str, dict[str, Count]] = {"enqueue": {}}
    for what, failures, attempts in LIVES:
        with bench.console.status(f"requests to {what}"):
            found["enqueue"]["ours"], mine = _count_ours(here, counter, failures, attempts)
            found[what] = {"ours": mine}
            for setting in settings:
                counts = _count_theirs(here, counter, setting, failures, attempts)
                found["enqueue"][setting], found[what][setting] = counts
    whole = "enqueue and process"
    found[whole] = {whose: found["enqueue"][whose] + found["process"][whose] for whose in ("ours", *settings)}
    for what, counts in found.items():
        _compare_counts(bench, f"requests to {what}", {whose: count.each for whose, count in counts.items()})
    billed = {whose: count.billed_each for whose, count in found[whole].items()}
    _compare_counts(bench, f"billed requests to {whole}", billed)
    part.raw["requests by kind"] = {
        what: {whose: count.by_kind for whose, count in counts.items()} for what, counts in found.items()
    }


def _compare_counts(bench: Bench, what: str, each: dict[str, float]) -> None:
    ours = each.pop("ours")
    if not each:
        bench.series(what, [ours], unit="a message")
    for setting, theirs in each.items():
        against = f"{s3db.NAME}, {setting}"
        # The goal is for the plugin as it comes; what its best settings make of it is shown beside.
        goal = FEWER_REQUESTS if setting == "default" else None
        bench.pair(what, [(ours, theirs)], against, unit="a message", better="less", goal=goal)


def _count_ours(here: Place, counter: Proxy, failures: int, attempts: int) -> tuple[Count, Count]:
    queue = queue_at(counter.endpoint, here.bucket, max_attempts=attempts)
    counter.take()
    fill(queue, OUR_COUNTED, {"payload": BODY})
    enqueued = Count.of(counter.take(), OUR_COUNTED)
    with draining(queue, concurrency=3, failures=failures) as wait:
        done = wait(OUR_COUNTED, seconds=60)
        return enqueued, Count.of(counter.take(), done.messages)


def _count_theirs(
    here: Place, counter: Proxy, setting: s3db.Setting, failures: int, attempts: int
) -> tuple[Count, Count]:
    with s3db.plugin(counter.port, here.bucket, setting=setting, max_attempts=attempts) as plugin:
        counter.take()
        plugin.enqueue(COUNTED, BODY)
        enqueued = Count.of(counter.take(), COUNTED)
        done = plugin.process(
            counter.port, COUNTED, concurrency=3, seconds=COUNTED_SECONDS, patience=COUNTED_SECONDS, failures=failures
        )
        return enqueued, Count.of(counter.take(), done.messages)


# Messages a second


def _rates(bench: Bench, part: Part, here: Place, *, alone: bool) -> None:
    found = Rates()
    turns = [(delay, concurrency) for delay in DELAYS for concurrency in CONCURRENCIES]
    with bench.console.status("messages/s") as status:
        for repetition in range(bench.repetitions):
            for delay, concurrency in turns:
                status.update(f"messages/s, {_at(delay, concurrency)}: {repetition + 1} of {bench.repetitions}")
                steps = [_rate_ours] if alone else [_rate_ours, _rate_theirs]
                for step in steps if repetition % 2 else reversed(steps):
                    step(here, found, delay, concurrency)
    for turn in turns:
        what = f"messages/s, {_at(*turn)}"
        if alone:
            bench.series(what, found.ours[turn], unit="/s")
            continue
        pairs = list(zip(found.ours[turn], found.theirs[turn], strict=True))
        bench.pair(what, pairs, f"{s3db.NAME}, best", unit="/s", goal=MORE_MESSAGES)
    for delay in DELAYS:
        few, many = (found.ours[delay, concurrency] for concurrency in (CONCURRENCIES[0], CONCURRENCIES[-1]))
        what = f"ours does not fall: {_at(delay, CONCURRENCIES[-1])}"
        bench.pair(what, list(zip(many, few, strict=True)), f"ours at {CONCURRENCIES[0]}", unit="/s", goal=1)
    bench.note(f"the delaying proxy was busy {max(found.proxy_busy):.0%} of a core at most while ours ran")
    part.raw["requests a message"] = found.requests
    part.raw["proxy busy"] = found.proxy_busy


def _rate_ours(here: Place, found: Rates, delay: float, concurrency: int) -> None:
    # Enough that the run never gets to the end: before a thread takes its next message, it makes two requests.
    messages = int(SECONDS * min(700, concurrency / (2 * (delay or 0.001)))) + concurrency
    queue = queue_at(here.endpoint, here.bucket)
    fill(queue, messages, {"payload": BODY})
    passage = here.proxies[delay] if delay else None
    if passage:
        queue = queue_at(passage.endpoint, here.bucket, queue.name)
        passage.take()
    with draining(queue, concurrency=concurrency) as wait:
        done = wait(messages, seconds=SECONDS)
        if passage:
            passed = passage.take()
            found.proxy_busy.append(passed.cpu_seconds / done.seconds)
            _note_requests(found, "ours", delay, concurrency, passed, done)
    found.ours.setdefault((delay, concurrency), []).append(done.per_second)


def _rate_theirs(here: Place, found: Rates, delay: float, concurrency: int) -> None:
    passage = here.proxies[delay] if delay else None
    with s3db.plugin(here.port, here.bucket, concurrency=concurrency) as plugin:
        plugin.enqueue(THEIR_MESSAGES, BODY)
        if passage:
            passage.take()
        done = plugin.process(
            passage.port if passage else here.port,
            THEIR_MESSAGES,
            concurrency=concurrency,
            seconds=SECONDS,
            patience=PATIENCE,
        )
        if passage:
            _note_requests(found, "theirs", delay, concurrency, passage.take(), done)
    # None ended: less than one in that time, and a ratio needs a number.
    found.theirs.setdefault((delay, concurrency), []).append(max(done.messages, 1) / done.seconds)


def _note_requests(found: Rates, whose: str, delay: float, concurrency: int, passed: Passed, done: Processed) -> None:
    found.requests.setdefault(f"{whose}, {_at(delay, concurrency)}", []).append(Count.of(passed, done.messages).each)


def _at(delay: float, concurrency: int) -> str:
    return f"{concurrency} at a time, {'+20 ms a request' if delay else 'no delay'}"
