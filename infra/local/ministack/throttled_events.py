"""Keeps throttled events as Lambda does. Runs inside MiniStack's environment, so it imports nothing of this repository.

MiniStack drops an asynchronous event after two retries, whatever the reason. Lambda returns a throttled one to its
queue and tries again for as long as the event may be old, after a second first and at most after five minutes; that
is no attempt of the function's. What waits here is lost with MiniStack: the sweeper finds its messages.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

#: As Lambda's guide says of throttling: from a second to five minutes.
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 300.0
#: How old an event may be, unless the function says otherwise.
EVENT_SECONDS = 6 * 3600.0


def keep_throttled_events(lambda_svc: Any) -> None:
    """Let asynchronous invocations wait while their function is at its limit; others are still refused."""
    begin, execute = lambda_svc.invoke_async_with_retry, lambda_svc._execute_function
    #: How old the event of this context may become; 0: its caller waits for the answer.
    oldest: ContextVar[float] = ContextVar("oldest", default=0.0)

    def begin_patiently(function: dict[str, Any], event: dict[str, Any]) -> None:
        config = function.get("event_invoke_config")
        config = config or (function.get("event_invoke_configs") or {}).get("$LATEST") or {}
        # MiniStack runs it in a thread of its own, with a copy of this context.
        token = oldest.set(float(config.get("MaximumEventAgeInSeconds") or EVENT_SECONDS))
        try:
            begin(function, event)
        finally:
            oldest.reset(token)

    def execute_patiently(function: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
        return patiently(lambda: execute(function, event), oldest.get())

    lambda_svc.invoke_async_with_retry = begin_patiently
    lambda_svc._execute_function = execute_patiently


def patiently(
    execute: Callable[[], dict[str, Any]],
    oldest: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> dict[str, Any]:
    """The result, once it is not that the function was throttled, or the event has become too old."""
    waited, pause = 0.0, FIRST_SECONDS
    while True:
        result = execute()
        # Not all at once: sixty events that were throttled together would be throttled together again.
        rest = pause * (0.5 + chance() / 2)
        if not result.get("throttle") or waited + rest > oldest:
            return result
        sleep(rest)
        waited += rest
        pause = min(LONGEST_SECONDS, pause * 2)
