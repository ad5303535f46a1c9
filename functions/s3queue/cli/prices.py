"""Dollars as people read them."""

from __future__ import annotations

from datetime import timedelta

from s3queue.costs.prices import requests_cost


def per_hour(lists: float, interval: timedelta) -> str:
    """What looking again and again costs."""
    looks = timedelta(hours=1) / max(interval, timedelta(milliseconds=50))
    return f"{dollars(requests_cost(lists=lists * looks))} an hour"


def dollars(amount: float) -> str:
    """Enough digits to tell it from nothing."""
    if amount and abs(amount) < 0.01:
        return f"${amount:.2g}" if abs(amount) >= 0.0001 else "less than $0.0001"
    return f"${amount:,.2f}"
