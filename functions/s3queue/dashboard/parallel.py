"""Parallel: a page needs many small requests, and nobody waits for them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")
#: Requests at the same time, whatever they read.
READERS = 16


def in_parallel(function: Callable[[T], U], items: Iterable[T], readers: int = READERS) -> list[U]:
    """What `function` says of each item, in their order."""
    with ThreadPoolExecutor(readers) as pool:
        return list(pool.map(function, items))
