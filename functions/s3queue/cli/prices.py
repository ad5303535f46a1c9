"""Dollars as people read them."""

from __future__ import annotations

from datetime import timedelta

from s3queue.costs.prices import requests_cost


def per_hour(lists: float, interval: timedelta) -> str:
    """What it costs to send so many LISTs at every interval."""
    times = timedelta(hours=1) / max(interval, timedelta(milliseconds=50))
    return f"{dollars(requests_cost(lists=lists * times))} per hour"


def dollars(amount: float) -> str:
    """The amount, with enough digits that a small one is not shown as zero."""
    if amount and abs(amount) < 0.01:
        return f"${amount:.2g}" if abs(amount) >= 0.0001 else "less than $0.0001"
    return f"${amount:,.2f}"
