"""A store as a process sees it that is killed at a chosen request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from s3queue.store import ObjectStore

REQUESTS = ("put", "open", "head", "delete", "delete_many", "copy", "list")


class Killed(BaseException):
    """Not an Exception: nothing may catch it and go on, as nothing goes on after kill -9."""


class KilledStore:
    """Passes requests on until number `at`; that one and all later ones never return.

    `late`: the fatal request still reaches the server, only its answer is not seen.
    """

    def __init__(self, inner: ObjectStore, at: int, *, late: bool = False) -> None:
        self._inner, self._at, self._late = inner, at, late
        self.url = inner.url
        self.requests = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        request: Callable[..., Any] = getattr(self._inner, name)
        if name not in REQUESTS:
            return request

        def sent(*arguments: Any, **options: Any) -> Any:
            self.requests += 1
            if self.requests == self._at and self._late:
                request(*arguments, **options)
            if self.requests >= self._at:
                raise Killed(f"{name} {arguments[0]}")
            return request(*arguments, **options)

        return sent
