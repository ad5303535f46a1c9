"""What the smoke costs: before, from the load that it sends; after, from what was counted and billed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infra.local.demo.messages import Sent
from s3queue.costs.bill import bill_of
from s3queue.costs.estimate import estimate
from s3queue.costs.lines import Line
from s3queue.costs.prices import PRICES
from s3queue.costs.workload import MONTH, Workload

#: What is sent, rounded up: objects for functions; and Spark runs, of which the archive is one.
OBJECTS, RUNS = 40, 2
#: How long a run works, beside its start; and how long everything stands, in whole hours, as metrics are billed.
RUN_SECONDS = 120.0
HOURS = 1.0
#: Of the smoke itself, which looks every 0.3 s whether a message has ended.
LOOKS = 20_000
#: Shares of attempts that fail, and of messages that die.
RETRIES, DEAD = 0.1, 0.05
#: Lines of a month's bill that grow with time, not with messages: some by the hour that has begun.
BY_THE_HOUR = "CloudWatch"
STANDING = ("sweeper", BY_THE_HOUR)
#: One that a run of an hour does not have.
STORAGE = "storage"
#: Operations that S3 bills like a PUT; deletes are free, and everything else is billed like a GET.
WRITES = frozenset({"PutObject", "CopyObject", "ListObjectsV2", "ListObjects"})
FREE = frozenset({"DeleteObject", "DeleteObjects"})


def forecast(queues: int) -> list[Line]:
    """What a whole run costs at most, line by line."""
    return [
        *_sent(OBJECTS, RUNS),
        *_standing(queues, HOURS),
        Line(what="S3: GET, of the smoke itself", how="waiting for outcomes", count=LOOKS, price=PRICES.s3_read),
    ]


def spent(
    sent: Sequence[Sent], asked: Mapping[str, int], jobs: Sequence[Mapping[str, Any]], *, queues: int, hours: float
) -> list[Line]:
    """What it did cost: the smoke's requests and Spark's hours as counted, those of the functions from the model."""
    billed = [found for job in jobs if (found := job.get("billedResourceUtilization"))]
    is_billed = bool(billed) and len(billed) == len(jobs)
    lines = _sent(sum(one.queue != "exports" for one in sent), len(jobs))
    if is_billed:
        lines = [line for line in lines if not line.what.startswith("EMR: ")]
        how = f"{len(billed)} runs, as EMR Serverless bills them"
        for what, field, price, unit in (
            ("EMR: vCPU", "vCPUHour", PRICES.emr_vcpu, "vCPU-hours"),
            ("EMR: memory", "memoryGBHour", PRICES.emr_gb, "GB-hours"),
        ):
            count = sum(float(found[field]) for found in billed)
            lines.append(Line(what=what, how=how, count=count, price=price, unit=unit, per=1))
    writes = sum(count for name, count in asked.items() if name in WRITES)
    reads = sum(count for name, count in asked.items() if name not in WRITES | FREE)
    lines += [
        Line(what="S3: PUT and LIST, of the smoke itself", how="counted", count=writes, price=PRICES.s3_write),
        Line(what="S3: GET, of the smoke itself", how="counted", count=reads, price=PRICES.s3_read),
    ]
    return [*lines, *_standing(queues, hours)]


def total(lines: Iterable[Line]) -> float:
    return sum(line.cost for line in lines)


def _sent(objects: int, runs: int) -> list[Line]:
    """The model's requests and seconds for so many messages: a month in which nothing else is sent."""
    if not objects + runs:
        return []
    load = Workload(
        rate=(objects + runs) / MONTH.total_seconds(),
        heavy=runs / (objects + runs),
        heavy_seconds=RUN_SECONDS,
        retries=RETRIES,
        dead=DEAD,
    )
    lines = bill_of(estimate(load)).lines
    return [
        _line(one, 1.0, "from the model, for what is sent")
        for one in lines
        if one.cost and not any(word in one.what for word in (*STANDING, STORAGE))
    ]


def _standing(queues: int, hours: float) -> list[Line]:
    """What it costs that the stack is there, with something in flight now and then."""
    found = []
    for line in bill_of(estimate(Workload(rate=queues / 60, queues=queues))).lines:
        if any(word in line.what for word in STANDING):
            # Metrics and alarms are billed by the hour that has begun.
            stood = math.ceil(hours) if BY_THE_HOUR in line.what else hours
            found.append(_line(line, stood * 3600 / MONTH.total_seconds(), f"{stood:.2g} h"))
    return found


def _line(line: Line, share: float, how: str) -> Line:
    return Line(what=line.what, how=how, count=line.count * share, price=line.price, unit=line.unit, per=line.per)
