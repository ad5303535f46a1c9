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
    window = _window(load)
    windows = max(1.0, held / window)
    per_hold = operations.HOLD + operations.COMMIT * windows + operations.GIVE_UP
    if is_gathering(load, held):
        per_hold += operations.GATHER
    # One that took few messages last is not listed again before it is given up.
    if held >= FEW <= window:
        per_hold += operations.LIST_PARTITION * max(1.0, held / PAGE)
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


def is_gathering(load: Workload, held: float) -> bool:
    """Whether a holder waits for more messages before the first call of a handler that collects them."""
    return bool(load.settings.collect and load.settings.within and held < load.settings.collect)


def _window(load: Workload) -> int:
    """How many messages one commit is for. With a single attempt it has to be known which one a worker died of."""
    return max(WINDOW, load.settings.collect) if load.settings.max_attempts > 1 else 1


def messages_per_hold(load: Workload) -> float:
    """How many messages one holder runs before its partition is empty: the busy period of a queue of one server."""
    arriving = load.rate / load.queues / load.settings.partitions
    seconds = load.seconds_per_request + load.handler_seconds
    if _window(load) == 1:
        # Each is committed alone.
        seconds += (operations.COMMIT + operations.RECORD).total() * load.seconds_per_request
    busy = arriving * seconds
    # Nobody holds one for longer than an invocation lasts.
    most = max(1.0, load.settings.function_timeout.total_seconds() * arriving)
    held = min(1 / (1 - busy) if busy < 1 else most, most)
    if is_gathering(load, held):
        # And those that come meanwhile.
        held = min(held + arriving * load.settings.within.total_seconds(), most)
    return held
