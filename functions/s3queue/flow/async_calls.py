"""in_thread(): a call that waits for S3, awaited without stopping the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
#: Calls that wait for S3 at the same time; more of them wait for a thread. As many as a store keeps connections for.
CALLS = 32

#: Not the loop's own executor: what others wait for there must not keep messages from being stored. Made at first use,
#: and not in a child process: threads do not survive a fork.
_pools: dict[int, ThreadPoolExecutor] = {}


def _pool() -> ThreadPoolExecutor:
    process = os.getpid()
    if process not in _pools:
        _pools[process] = ThreadPoolExecutor(CALLS, thread_name_prefix="s3queue-async")
    return _pools[process]


async def in_thread(call: Callable[..., T], /, *arguments: Any, **options: Any) -> T:
    """What the call returns, or raises. It sees the caller's context variables.

    If the awaiting task is cancelled, a call that has begun goes on: whether it took effect is unknown.
    """
    context = contextvars.copy_context()
    running = partial(context.run, call, *arguments, **options)
    return await asyncio.get_running_loop().run_in_executor(_pool(), running)
