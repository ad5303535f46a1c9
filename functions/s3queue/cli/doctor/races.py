"""Races on test keys: checks that this endpoint honours conditional writes, and that exactly one writer wins.  [P2]"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from s3queue.cli.prices import dollars
from s3queue.costs.prices import requests_cost
from s3queue.errors import Conflict, Contended, Unavailable

from .checks import Examination, Finding

#: Writers that start at the same moment.
WRITERS = 8
_UNFIT = "do not use this server: two workers could hold the same message"


def conditional_writes(of: Examination) -> Iterator[Finding]:
    """Each condition of the protocol, once fulfilled and once not."""
    store, key = of.queue.store, of.scratch("locks")
    first = store.put(key, b"first", if_absent=True)
    broken: list[str] = []
    if not _refused(lambda: store.put(key, b"second", if_absent=True)):
        broken.append("PUT If-None-Match: * overwrote an object")
    other = "0" * 32
    if not _refused(lambda: store.put(key, b"third", if_match=other)):
        broken.append("PUT If-Match with another ETag overwrote an object")
    if not _refused(lambda: store.delete(key, if_match=other)):
        broken.append("DELETE If-Match with another ETag deleted an object")
    found = store.head(key)
    if not broken and (found is None or found.etag != first.etag):
        broken.append("a refused request changed the object")
    if not broken:
        second = store.put(key, b"fourth", if_match=first.etag)
        store.delete(key, if_match=second.etag)
        if not _refused(lambda: store.put(key, b"fifth", if_match=second.etag)):
            broken.append("PUT If-Match created an object that was deleted")
    if broken:
        yield Finding("conditional writes", "problem", "; ".join(broken), _UNFIT)
    else:
        yield Finding("conditional writes", "ok", "If-None-Match and If-Match are honoured by PUT and DELETE")


def _refused(ask: Callable[[], Any]) -> bool:
    try:
        ask()
    except Conflict:
        return True
    return False


def run(of: Examination, rounds: int) -> Iterator[Finding]:
    """Many writers write the same key at the same moment, many times: exactly one may win each time."""
    if not rounds:
        yield Finding("races", "skipped", "--races 0")
        return
    store = of.queue.store

    def create(key: str, _etag: str, body: bytes) -> None:
        store.put(key, body, if_absent=True)

    def replace(key: str, etag: str, body: bytes) -> None:
        store.put(key, body, if_match=etag)

    def delete(key: str, etag: str, _body: bytes) -> None:
        store.delete(key, if_match=etag)

    for name, write, is_new in (("create", create, True), ("replace", replace, False), ("delete", delete, False)):
        doubles = silent = unknown = 0
        with ThreadPoolExecutor(WRITERS) as pool:
            for _ in range(rounds):
                key = of.scratch("locks")
                etag = "" if is_new else store.put(key, b"start", if_absent=True).etag
                wins, unclear = _race(pool, write, key, etag)
                doubles += wins > 1
                silent += wins == 0 and not unclear
                unknown += unclear
        yield _verdict(name, rounds, doubles, silent, unknown)


def _race(pool: ThreadPoolExecutor, write: Callable[[str, str, bytes], None], key: str, etag: str) -> tuple[int, int]:
    """(number of winners, number of unclear answers)."""
    gate = threading.Barrier(WRITERS)

    def contend(number: int) -> str:
        gate.wait(timeout=30)
        try:
            write(key, etag, f"writer {number}".encode())
        except Conflict as lost:
            return "unknown" if lost.retried else "lost"
        except (Contended, Unavailable):
            return "unknown"
        return "won"

    ended = list(pool.map(contend, range(WRITERS)))
    return ended.count("won"), ended.count("unknown")


def _verdict(name: str, rounds: int, doubles: int, silent: int, unknown: int) -> Finding:
    check = f"race to {name}"
    if doubles:
        return Finding(check, "problem", f"{doubles} of {rounds} races had two winners", _UNFIT)
    if silent:
        return Finding(
            check,
            "problem",
            f"{silent} of {rounds} races had no winner",
            "do not use this server: its answers are wrong",
        )
    cost = dollars(requests_cost(puts=rounds * (WRITERS if name != "delete" else 1)))
    unclear = f"; unclear answers: {unknown}" if unknown else ""
    return Finding(check, "ok", f"{rounds} races of {WRITERS} writers, one winner each ({cost}){unclear}")
