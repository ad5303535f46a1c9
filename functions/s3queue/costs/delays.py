"""What a delay costs, beside its message: the sweeper stays awake for one of less than a minute."""

from __future__ import annotations

import math

from s3queue.deployment import SWEEPER_MIB
from s3queue.sweeper.sweeper import DUE_SECONDS, SOON

from . import requests as operations
from .prices import PRICES, Prices
from .requests import BILLED_AS_READS, BILLED_AS_WRITES, RequestCounts


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
