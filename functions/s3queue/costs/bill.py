"""Bill: what a workload costs in a month, line by line, with s3queue and with SQS, and when which is cheaper.

Not included on either side: log lines, data transfer, cold starts, free tiers.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .estimate import WORKER_VCPU, Estimate, Function, Runs, estimate
from .lines import SECONDS, Line
from .monitoring import GB, sqs_watching, watching
from .prices import MILLION, PRICES
from .requests import BILLED_AS_READS, BILLED_AS_WRITES, RequestCounts
from .workload import Workload

#: SQS bills a request per 64 KiB of payload, accepts ten messages in one request, and no message above 1 MiB.
SQS_CHUNK = 64 * 1024
SQS_BATCH = 10
SQS_MOST = 1024 * 1024
#: Lambda polls an SQS queue with at least this many long polls, of so many seconds each, even if it is empty.
SQS_POLLERS, SQS_POLL_SECONDS = 5, 20
#: What a function behind SQS needs besides its handler.
SQS_SECONDS = 0.005
#: Measured: the size of a record without a result, and of a dead letter's metadata.
RECORD_BYTES = 450
DEAD_BYTES = 400
LARGEST_BATCH = 10_000
#: AWS says that a bucket key saves up to 99 % of the requests to KMS; not measured.
KMS_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The lines of one month."""

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
        *_requests("heavy messages", "and their Spark runs", found.running),
        Line(
            what="S3: sweeper",
            how="LIST and PUT; when idle, 1 per minute and queue",
            count=found.sweeping.total(written) * SECONDS,
            price=PRICES.s3_write,
        ),
        Line(
            what="S3: sweeper's GET",
            count=found.sweeping.total(read) * SECONDS,
            price=PRICES.s3_read,
            how="queue.json, a sample of records",
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
        *watching(load, found.worker, found.sweeper),
    ]
    if load.kms:
        lines += _kms(found)
    if load.settings.events != "off":
        count = _events(load) * SECONDS
        how = f"events={load.settings.events}"
        lines.append(Line(what="EventBridge", how=how, count=count, price=PRICES.eventbridge_event, unit="events"))
    return _bill(lines + _emr(found.runs), load)


def sqs_bill_of(found: Estimate, *, batched: bool) -> Bill:
    """SQS with a Lambda that always receives batches of ten, the best case; producers send singly or in batches of ten.

    A message above 1 MiB is stored in S3, as SQS's extended client does. Spark costs the same on both sides.
    """
    load = found.workload
    in_s3 = load.size > SQS_MOST
    size = 256 if in_s3 else load.size
    alone, together = _chunks(size), _chunks(size * SQS_BATCH)
    tens = load.messages / SQS_BATCH
    tries = sum(load.retries**attempt for attempt in range(load.settings.max_attempts))
    receives = tens * tries
    empty = max(0.0, SQS_POLLERS / SQS_POLL_SECONDS * load.queues * SECONDS - receives)
    sent = f"{together} for ten messages" if batched else f"{alone} per message"
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
        Line(what="SQS: empty receives", how="Lambda's long polls of an empty queue", count=empty, price=price),
        *_function("Lambda: worker", worker),
        *sqs_watching(load, worker),
    ]
    if in_s3:
        lines += _requests("payloads", "above 1 MiB", RequestCounts.of("PUT payloads", "GET payloads") * load.rate)
    return _bill(lines + _emr(found.runs), load)


def break_even(load: Workload, *, batched: bool) -> int | None:
    """The smallest number of messages per object with which s3queue costs no more than SQS; None if there is none.

    A message costs less the more messages share an object, so a binary search finds the number.
    """

    def is_cheaper(batch: int) -> bool:
        found = estimate(replace(load, batch=batch))
        return bill_of(found).total <= sqs_bill_of(found, batched=batched).total

    batch = bisect.bisect_left(range(1, LARGEST_BATCH + 1), True, key=is_cheaper) + 1
    return batch if batch <= LARGEST_BATCH else None


def _bill(lines: Sequence[Line], load: Workload) -> Bill:
    return Bill(lines=tuple(line for line in lines if line.count), messages=load.messages)


def _requests(what: str, how: str, spent: RequestCounts) -> list[Line]:
    """The requests of a month by verb, as S3's own bill lists them."""
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
            what=f"{what}, time",
            how=f"{function.seconds:.3g} s of {function.memory_mib} MiB each",
            count=function.gb_seconds * SECONDS,
            price=PRICES.lambda_gb_second,
            unit="GB-seconds",
        ),
    ]


def _kms(found: Estimate) -> list[Line]:
    """Every object is encrypted when it is written and decrypted when it is read, mostly with the bucket's own key."""
    asked = found.requests + found.running + found.sweeping
    count = sum(asked.total(frozenset({verb})) for verb in ("PUT", "COPY", "GET")) * KMS_SHARE * SECONDS
    how = f"{KMS_SHARE:.0%} of PUT, COPY and GET: a bucket key answers the others"
    return [
        Line(what="KMS: requests", how=how, count=count, price=PRICES.kms_request),
        Line(what="KMS: key", count=1, price=PRICES.kms_key, unit="keys", per=1),
    ]


def _emr(runs: Runs | None) -> list[Line]:
    if runs is None:
        return []
    hours = runs.billed_seconds * SECONDS / 3600
    how = f"{runs.started * SECONDS:,.0f} runs of {runs.seconds:,.0f} s, at most {runs.workers} workers each"
    return [
        Line(what="EMR: vCPU", how=how, count=hours * WORKER_VCPU, price=PRICES.emr_vcpu, unit="vCPU-hours", per=1),
        Line(
            what="EMR: memory",
            how=how,
            count=hours * runs.gb / runs.workers,
            price=PRICES.emr_gb,
            unit="GB-hours",
            per=1,
        ),
    ]


def _stored(found: Estimate) -> float:
    """Bytes that are stored at any time: records, kept payloads, dead letters, and messages in flight."""
    load, settings = found.workload, found.workload.settings
    rate = load.rate
    recorded = found.requests.total(kind="records") - found.requests.total(frozenset({"GET"}), "records")
    recorded += found.running.total(frozenset({"PUT"}), "records")
    records = recorded * RECORD_BYTES * settings.record_retention.total_seconds()
    letters = load.letters * (load.size + DEAD_BYTES) * settings.dead_retention.total_seconds()
    if settings.keep_payload:
        records += (
            (rate * (1 - load.cancelled * (1 - load.heavy)) - load.letters)
            * load.size
            * settings.record_retention.total_seconds()
        )
    return records + letters + found.worker.concurrency * load.size * load.batch


def _events(load: Workload) -> float:
    """Events per second: all but `message.enqueued`, which the functions do not publish; or only failures."""
    attempts = range(1, load.settings.max_attempts)
    failed = load.objects * sum(load.retried(attempt) for attempt in attempts)
    buried = load.objects * (1 - (1 - load.dying) ** load.batch)
    if load.settings.events == "failures":
        return failed + buried
    # Claimed and processing for each attempt; then retry, completed or dead.
    return 2 * (load.objects + failed) + failed + load.objects


def _chunks(size: int) -> int:
    return max(1, math.ceil(size / SQS_CHUNK))
