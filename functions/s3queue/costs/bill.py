"""Bill: what a workload costs in a month, line by line, here and with SQS; and where the one becomes the cheaper one.

Left out on both sides: logs and metrics, data transfer, cold starts, free tiers.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .estimate import WORKER_GB, WORKER_VCPU, Estimate, Function, Runs, estimate
from .prices import MILLION, PRICES
from .requests import BILLED_AS_READS, BILLED_AS_WRITES, RequestCounts
from .workload import MONTH, Workload

#: SQS bills a request for every 64 KiB of payload, takes ten messages in one, and none above 1 MiB.
SQS_CHUNK = 64 * 1024
SQS_BATCH = 10
SQS_MOST = 1024 * 1024
#: Lambda asks an SQS queue with this many long polls at least, of so many seconds each, also when nothing comes.
SQS_POLLERS, SQS_POLL_SECONDS = 5, 20
#: What a function that Lambda fed from SQS needs beside its handler.
SQS_SECONDS = 0.005
#: Measured: a record without a result, and what a dead letter's metadata takes.
RECORD_BYTES = 450
DEAD_BYTES = 400
LARGEST_BATCH = 10_000
GB = 1000**3
SECONDS = MONTH.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a bill: how many, what for, at which price for how many."""

    what: str
    count: float
    price: float
    how: str = ""
    unit: str = "requests"
    per: int = MILLION

    @property
    def cost(self) -> float:
        return self.count * self.price / self.per


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """A month's lines."""

    lines: tuple[Line, ...]
    messages: float

    @property
    def total(self) -> float:
        return sum(line.cost for line in self.lines)

    @property
    def per_million(self) -> float:
        return self.total / self.messages * MILLION if self.messages else 0.0


def bill_of(found: Estimate) -> Bill:
    """What s3queue costs."""
    load = found.workload
    written, read = BILLED_AS_WRITES, BILLED_AS_READS
    lines = [
        *_requests("messages", "producers and functions", found.requests),
        Line(what="S3: DELETE", how="free", count=found.requests.total(frozenset({"DELETE"})) * SECONDS, price=0.0),
        *_requests("heavy messages", "and their runs", found.running),
        Line(
            what="S3: sweeper",
            how="LIST and PUT; idle, 1 a minute and queue",
            count=found.sweeping.total(written) * SECONDS,
            price=PRICES.s3_write,
        ),
        Line(
            what="S3: sweeper's GET", count=found.sweeping.total(read) * SECONDS, price=PRICES.s3_read, how="queue.json"
        ),
        Line(
            what="S3: storage",
            how=f"records {load.settings.record_retention.days} days, dead letters {load.settings.dead_retention.days}",
            count=_stored(found) / GB,
            price=PRICES.s3_storage,
            unit="GB-months",
            per=1,
        ),
        *_function("Lambda: worker", found.worker),
        *_function("Lambda: sweeper", found.sweeper),
    ]
    if load.settings.events != "off":
        count = _events(load) * SECONDS
        how = f"events={load.settings.events}"
        lines.append(Line(what="EventBridge", how=how, count=count, price=PRICES.eventbridge_event, unit="events"))
    return _bill(lines + _emr(found.runs), load)


def sqs_bill_of(found: Estimate, *, batched: bool) -> Bill:
    """SQS with a Lambda that always takes tens, at its best; the producers send one by one, or in tens too.

    A message above 1 MiB lies in S3, as SQS's own extended client does it. Spark's share is the same on both sides.
    """
    load = found.workload
    in_s3 = load.size > SQS_MOST
    size = 256 if in_s3 else load.size
    alone, together = _chunks(size), _chunks(size * SQS_BATCH)
    tens = load.messages / SQS_BATCH
    tries = sum(load.retries**attempt for attempt in range(load.settings.max_attempts))
    receives = tens * tries
    empty = max(0.0, SQS_POLLERS / SQS_POLL_SECONDS * load.queues * SECONDS - receives)
    sent = f"{together} for ten messages" if batched else f"{alone} a message"
    worker = Function(
        invocations=receives / SECONDS,
        seconds=SQS_SECONDS + load.handler_seconds * SQS_BATCH,
        memory_mib=load.settings.memory_mib,
    )
    price = PRICES.sqs_request
    lines = [
        Line(what="SQS: send", how=sent, count=tens * together if batched else load.messages * alone, price=price),
        Line(what="SQS: receive", how=f"{together} for ten messages", count=receives * together, price=price),
        Line(what="SQS: delete", how="1 for ten messages", count=tens, price=price),
        Line(what="SQS: empty receives", how="Lambda's long polls, while little comes", count=empty, price=price),
        *_function("Lambda: worker", worker),
    ]
    if in_s3:
        lines += _requests("payloads", "above 1 MiB", RequestCounts.of("PUT payloads", "GET payloads") * load.rate)
    return _bill(lines + _emr(found.runs), load)


def break_even(load: Workload, *, batched: bool) -> int | None:
    """The smallest batch with which s3queue costs no more than SQS; None if there is none.

    A message costs less the more of them share an object, so the first that is cheap enough is found by halving.
    """

    def is_cheaper(batch: int) -> bool:
        found = estimate(replace(load, batch=batch))
        return bill_of(found).total <= sqs_bill_of(found, batched=batched).total

    batch = bisect.bisect_left(range(1, LARGEST_BATCH + 1), True, key=is_cheaper) + 1
    return batch if batch <= LARGEST_BATCH else None


def _bill(lines: Sequence[Line], load: Workload) -> Bill:
    return Bill(lines=tuple(line for line in lines if line.count), messages=load.messages)


def _requests(what: str, how: str, spent: RequestCounts) -> list[Line]:
    """By verb, a month of them: as S3's own bill lists them."""
    prices = dict.fromkeys(BILLED_AS_WRITES, PRICES.s3_write) | dict.fromkeys(BILLED_AS_READS, PRICES.s3_read)
    return [
        Line(what=f"S3: {verb}, {what}", how=how, count=count * SECONDS, price=prices[verb])
        for verb, count in spent.by_verb().items()
        if verb in prices
    ]


def _function(what: str, function: Function) -> list[Line]:
    price = PRICES.lambda_invocation
    return [
        Line(what=what, count=function.invocations * SECONDS, price=price, unit="invocations"),
        Line(
            what=f"{what}'s time",
            how=f"{function.seconds:.3g} s of {function.memory_mib} MiB each",
            count=function.gb_seconds * SECONDS,
            price=PRICES.lambda_gb_second,
            unit="GB-seconds",
        ),
    ]


def _emr(runs: Runs | None) -> list[Line]:
    if runs is None:
        return []
    hours = runs.billed_seconds * SECONDS / 3600
    how = f"{runs.started * SECONDS:,.0f} runs of {runs.seconds:,.0f} s, {runs.workers} workers each at most"
    return [
        Line(what="EMR: vCPU", how=how, count=hours * WORKER_VCPU, price=PRICES.emr_vcpu, unit="vCPU-hours", per=1),
        Line(what="EMR: memory", how=how, count=hours * WORKER_GB, price=PRICES.emr_gb, unit="GB-hours", per=1),
    ]


def _stored(found: Estimate) -> float:
    """Bytes that lie there at any time: records, dead letters, and what is on its way."""
    load, settings = found.workload, found.workload.settings
    rate = load.rate
    recorded = found.requests.total(kind="records") - found.requests.total(frozenset({"GET"}), "records")
    recorded += found.running.total(frozenset({"PUT"}), "records")
    records = recorded * RECORD_BYTES * settings.record_retention.total_seconds()
    letters = rate * load.dying * (load.size + DEAD_BYTES) * settings.dead_retention.total_seconds()
    return records + letters + found.worker.concurrency * load.size * load.batch


def _events(load: Workload) -> float:
    """A second: every event of a message but its PUT (whoever sends it is not the function), or only failures."""
    attempts = range(1, load.settings.max_attempts)
    failed = load.objects * sum(load.retried(attempt) for attempt in attempts)
    buried = load.objects * (1 - (1 - load.dying) ** load.batch)
    if load.settings.events == "failures":
        return failed + buried
    # claimed and processing, each attempt; then retry, completed or dead.
    return 2 * (load.objects + failed) + failed + load.objects


def _chunks(size: int) -> int:
    return max(1, math.ceil(size / SQS_CHUNK))
