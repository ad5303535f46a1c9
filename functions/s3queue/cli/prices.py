"""Prices: the one table that every dollar in the command comes from. US East, November 2026; check yours."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars per million requests."""

    s3_write: float = 5.00  # PUT, COPY, LIST
    s3_read: float = 0.40  # GET, HEAD
    s3_delete: float = 0.00
    sqs_request: float = 0.40
    lambda_invocation: float = 0.20
    eventbridge_event: float = 1.00


PRICES = Prices()
MILLION = 1_000_000


def requests_cost(*, lists: float = 0, puts: float = 0, gets: float = 0) -> float:
    """What so many requests to S3 cost; deletes are free."""
    return ((lists + puts) * PRICES.s3_write + gets * PRICES.s3_read) / MILLION


def per_hour(lists: float, interval: timedelta) -> str:
    """What looking again and again costs."""
    looks = timedelta(hours=1) / max(interval, timedelta(milliseconds=50))
    return f"{dollars(requests_cost(lists=lists * looks))} an hour"


def dollars(amount: float) -> str:
    """Enough digits to tell it from nothing."""
    if amount and abs(amount) < 0.01:
        return f"${amount:.2g}" if abs(amount) >= 0.0001 else "less than $0.0001"
    return f"${amount:,.2f}"
