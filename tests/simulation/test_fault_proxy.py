"""The faulty proxy does what it says: what reaches the server, and what the client makes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from s3queue.errors import Conflict, Unavailable
from s3queue.stores.direct import DirectStore
from support.fault_proxy import FAULTS, FaultProxy, fault_proxy
from support.faulty_server import FaultyServer, faulty_server
from support.manual_clock import ManualClock

#: Kinds after which a write that is sent once is stored, not stored, or stored and known to be.
LOST = {
    "answer lost after the write",
    "answer cut in its head",
    "reset after the request",
    "500 after the write",
    "503 after the write",
}
NEVER = {
    "closed before the request",
    "reset before the request",
    "500 before the request",
    "503 before the request",
    "409 before the write",
}
KNOWN = {"slow request", "slow answer", "idle connection closed", "idle connection reset"}
#: Asked for again by the client at once, since it was surely not carried out.
AGAIN = {"503 SlowDown"}


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server() as server:
        yield server


@pytest.fixture
def proxy(server: FaultyServer) -> Iterator[FaultProxy]:
    with fault_proxy(server.endpoint, seed=1) as proxy:
        proxy.delays, proxy.lateness = (0.0, 0.01), (1.0, 1.0)
        yield proxy


def store_behind(proxy: FaultProxy) -> DirectStore:
    return DirectStore("jobs", endpoint_url=proxy.endpoint, clock=ManualClock())


def test_every_kind_is_tried_here() -> None:
    others = {"409 after the write", "write that arrives late", "answer cut in its body"}
    assert LOST | NEVER | KNOWN | AGAIN | others == set(FAULTS)


@pytest.mark.parametrize("kind", sorted(LOST | NEVER | KNOWN | AGAIN))
def test_a_write_meets_the_fault_once_and_then_passes(server: FaultyServer, proxy: FaultProxy, kind: str) -> None:
    store = store_behind(proxy)
    store.put("first", b"x")
    proxy.expect(kind)

    if kind in LOST | NEVER:
        with pytest.raises(Unavailable):
            store.put("second", b"y", if_absent=True, once=True)
    else:
        store.put("second", b"y", if_absent=True, once=True)

    assert ("/jobs/second" in server.objects) == (kind not in NEVER)
    assert proxy.injected == {kind: 1}
    # Whatever became of the connection, the next request has its own answer.
    found = store.open("first")
    assert found is not None
    assert found.read() == b"x"


def test_a_409_may_follow_the_write(server: FaultyServer, proxy: FaultProxy) -> None:
    store = store_behind(proxy)
    proxy.expect("409 after the write")

    with pytest.raises(Conflict) as conflict:
        store.put("q/leases/a", b"mine", if_absent=True)

    assert conflict.value.retried
    assert server.objects == {"/jobs/q/leases/a": b"mine"}


def test_a_write_may_arrive_after_its_client_was_told_nothing(server: FaultyServer, proxy: FaultProxy) -> None:
    store = store_behind(proxy)
    proxy.expect("write that arrives late")

    with pytest.raises(Unavailable):
        store.put("q/leases/a", b"mine", if_absent=True, once=True)

    assert server.objects == {}
    until = time.monotonic() + 20
    while not server.objects and time.monotonic() < until:
        time.sleep(0.02)
    assert server.objects == {"/jobs/q/leases/a": b"mine"}


def test_an_answer_may_end_in_its_body(server: FaultyServer, proxy: FaultProxy) -> None:
    store = store_behind(proxy)
    store.put("a", b"a body that is long enough to be cut")
    proxy.expect("answer cut in its body")

    found = store.open("a")

    assert found is not None
    assert found.read() == b"a body that is long enough to be cut"
    assert [method for method, _ in server.requests] == ["PUT", "GET", "GET"]


def test_the_proxy_tells_of_every_object_that_was_stored(server: FaultyServer) -> None:
    told: list[tuple[str, int]] = []
    with fault_proxy(server.endpoint, seed=1, on_created=lambda key, size, etag: told.append((key, size))) as proxy:
        store = store_behind(proxy)
        proxy.expect("answer lost after the write")
        with pytest.raises(Unavailable):
            store.put("q/messages/a b", b"12345", once=True)

    assert told == [("q/messages/a b", 5)]
