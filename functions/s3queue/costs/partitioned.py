"""What a message of a partition needs: a PUT, a GET, and its share of what the partition needs as a whole."""

from __future__ import annotations

from s3queue.flow.partition_hold import FEW
from s3queue.flow.partition_window import PAGE, WINDOW

from . import requests as operations
from .requests import NOTHING, RequestCounts
from .workload import Workload


def partitioned_message(load: Workload) -> RequestCounts:
    """The requests of one message, from its PUT to its deletion, on average, with an event for each.

    Retries and deaths cost what they cost a message with its own lease, or less.
    """
    held = messages_per_hold(load)
    windows = max(1.0, held / WINDOW)
    per_hold = operations.HOLD + operations.COMMIT * windows + operations.GIVE_UP
    per_hold += operations.LIST_PARTITION * (max(1.0, held / PAGE) if held >= FEW else 0.0)
    if load.settings.history:
        per_hold += operations.RECORD * windows
    spent = operations.ENQUEUE + RequestCounts.of("GET messages") + per_hold * (1 / held)
    # The events of the others find the partition held.
    spent += operations.LOOK * (1 - 1 / held)
    if load.settings.keep_payload:
        spent += operations.KEEP * (1 - load.dying)
    spent += operations.MOVE * load.dying
    for attempt in range(1, load.settings.max_attempts):
        spent += (operations.HOLD + operations.REOPEN + operations.COMMIT) * load.retried(attempt)
    return spent + (operations.TOKEN if load.settings.rate else NOTHING)


def messages_per_hold(load: Workload) -> float:
    """How many messages one holder runs before its partition is empty: the busy period of a queue of one server."""
    arriving = load.rate / load.queues / load.settings.partitions
    busy = arriving * (load.seconds_per_request + load.handler_seconds)
    # Nobody holds one for longer than an invocation lasts.
    most = max(1.0, load.settings.function_timeout.total_seconds() * arriving)
    return min(1 / (1 - busy) if busy < 1 else most, most)
