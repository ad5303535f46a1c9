"""Sorting: the lines of a task in one order, however many there are, with a bounded part of them in memory."""

from __future__ import annotations

import heapq
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import IO

#: Lines of so many bytes are sorted in memory; what is more waits in files.
SORTED_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")


def in_order(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The same lines, sorted: so what is made of them does not depend on the order in which they came."""
    with ExitStack() as files:
        runs: list[IO[bytes]] = []
        held: list[bytes] = []
        size = 0
        for line in lines:
            held.append(line)
            size += len(line)
            if size >= SORTED_BYTES:
                runs.append(_written(files.enter_context(tempfile.TemporaryFile()), sorted(held)))
                held, size = [], 0
        yield from heapq.merge(*map(_read, runs), sorted(held))


def _written(file: IO[bytes], lines: Iterable[bytes]) -> IO[bytes]:
    for line in lines:
        file.write(_LENGTH.pack(len(line)) + line)
    file.seek(0)
    return file


def _read(file: IO[bytes]) -> Iterator[bytes]:
    while header := file.read(_LENGTH.size):
        yield file.read(_LENGTH.unpack(header)[0])
