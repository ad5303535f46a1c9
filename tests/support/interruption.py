"""Ctrl-C in the middle of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .workbench import Workbench


@contextmanager
def interrupted(bench: Workbench, path: str, *, is_deleted: bool = False) -> Iterator[None]:
    """Ctrl-C where the message is deleted, before or after that."""

    def around(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "delete" and key == f"orders/{path}":
            if is_deleted:
                perform()
            raise KeyboardInterrupt
        return perform()

    bench.around = around
    with pytest.raises(KeyboardInterrupt):
        yield
    bench.around = None
