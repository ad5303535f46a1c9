"""What a delay costs, beside its message: the sweeper stays awake for one of less than a minute."""

from __future__ import annotations

import math
from dataclasses import replace

from s3queue.deployment import SWEEPER_MIB
from s3queue.sweeper.sweeper import DUE_SECONDS, SOON

from . import requests as operations
from .prices import PRICES, Prices
from .requests import BILLED_AS_READS, BILLED_AS_WRITES, NOTHING, RequestCounts
from .workload import Workload, light_object


def requests_of_delay(seconds: float) -> RequestCounts:
    """The sweeper's requests for one delayed message, alone in an idle queue: it looks at once, every two seconds, and
    when the message is due.
    """
    if seconds > SOON.total_seconds():
        return operations.NOTHING
    return operations.REFRESH + operations.LIST_DELAYED * (1 + math.ceil(seconds / DUE_SECONDS))


def price_of_delay(seconds: float, prices: Prices = PRICES) -> float:
    """Dollars per million such messages: an event's invocation, and the requests and the seconds of staying awake.

    Messages whose delays overlap share them: this is the most.
    """
    asked = requests_of_delay(seconds)
    awake = seconds if asked.counts else 0.0
    return (
        prices.lambda_invocation
        + asked.total(BILLED_AS_WRITES) * prices.s3_write
        + asked.total(BILLED_AS_READS) * prices.s3_read
        + awake * SWEEPER_MIB / 1024 * prices.lambda_gb_second
    )


def with_delays(load: Workload, shards: int, others: float) -> RequestCounts:
    """As `light_object`, with the load's share of delayed messages: the sweeper dispatches these, as it does rescued
    ones.
    """
    usual = light_object(replace(load, delayed=0.0), shards, others)
    dispatched = light_object(replace(load, delayed=0.0, late=0.0, throttled=0.0, rescued=1.0), shards, others)
    # It runs from where it lies; a LIST of the backlog is one of messages all the same.
    counts: dict[tuple[str, str], float] = {}
    for (verb, kind), count in dispatched.counts.items():
        where = "delayed" if kind == "messages" and verb != "LIST" else kind
        counts[verb, where] = counts.get((verb, where), 0) + count
    return usual * (1 - load.delayed) + RequestCounts(counts) * load.delayed


def waking(load: Workload, sweeps: float, is_busy: float) -> tuple[RequestCounts, float, float]:
    """What delays ask of the sweeper in one queue, per second: requests, invocations, and seconds that it is awake.

    `sweeps`: of one minute; `is_busy`: the share of time in which something else is in flight. Messages whose delays
    overlap share the looks for them.
    """
    arriving = load.objects * load.delayed / load.queues
    if not arriving:
        return NOTHING, 0.0, 0.0
    if load.delay_seconds > SOON.total_seconds():
        # The minute's sweep sees them twice: what is due, and how many there are.
        is_there = 1 - math.exp(-arriving * load.delay_seconds)
        seen = operations.LIST_DELAYED * (2 * sweeps) + (operations.REFRESH + operations.PUBLISH) * (1 - is_busy)
        return seen * (is_there / 60), arriving, 0.0
    lasts = math.ceil(load.delay_seconds / DUE_SECONDS) * DUE_SECONDS
    begins = arriving * math.exp(-arriving * lasts)
    awake = 1 - math.exp(-arriving * lasts)
    looks = operations.LIST_DELAYED * (begins + awake / DUE_SECONDS) + operations.REFRESH * begins
    return looks, arriving, awake * load.delay_seconds / lasts if lasts else 0.0
