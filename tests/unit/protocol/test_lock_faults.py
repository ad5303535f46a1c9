"""Lock: lost answers, races and garbage leave one holder at most, and a lock that heals."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from s3queue.documents.lease import GRAIN
from s3queue.errors import LeaseLost, NewerFormat, Unavailable
from s3queue.protocol.locks import Lock
from s3queue.stores.memory import MemoryStore
from support.manual_clock import StandingClock
from support.sample_lock import KEY, TTL


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("step", ["acquire", "renew", "release"])
def test_a_lost_answer_is_settled(clock, step, fault):
    faults: list[str] = []

    def around(operation, key, perform):
        fault = faults.pop() if operation == "put" and faults else None
        if fault == "before":
            raise Unavailable("lost")
        answer = perform()
        if fault == "after":
            raise Unavailable("lost")
        return answer

    store = MemoryStore(clock=clock, around=around)
    ann, bob = (Lock(store, KEY, TTL, owner=owner, clock=clock) for owner in ("ann", "bob"))
    for operation, run in (("acquire", ann.acquire), ("renew", ann.renew), ("release", ann.release)):
        if operation == step:
            faults.append(fault)
        run()
        assert bool(bob.acquire()) is (operation == "release")


def test_a_renewal_whose_outcome_stayed_unknown_does_not_lose_the_lock(clock):
    down = []

    def around(operation, key, perform):
        answer = perform()
        if down:
            raise Unavailable("down")
        return answer

    ann = Lock(MemoryStore(clock=clock, around=around), KEY, TTL, owner="ann", clock=clock)
    ann.acquire()
    down.append(True)
    with pytest.raises(Unavailable):
        ann.renew()
    down.clear()

    assert ann.is_held
    ann.renew()
    ann.release()


def test_of_many_racing_threads_never_two_hold_it():
    clock = StandingClock()
    store = MemoryStore(clock=clock)
    inside, overlaps, tokens = [], [], []
    together = threading.Barrier(12)

    def work(number: int) -> None:
        mine = Lock(store, KEY, timedelta(seconds=30), owner=str(number), clock=clock)
        together.wait()
        for _ in range(5):
            with mine.held(wait=60):
                inside.append(number)
                overlaps.append(len(inside))
                tokens.append(mine.token)
                inside.remove(number)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))

    assert set(overlaps) == {1}
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 60


def test_of_many_who_take_over_a_stale_lock_exactly_one_wins(lock, clock):
    for _ in range(20):
        challengers = [lock(str(number)) for number in range(8)]
        together = threading.Barrier(8)

        def take(challenger: Lock, together: threading.Barrier = together) -> bool:
            together.wait()
            return challenger.acquire()

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(take, challengers)) == 1
        clock.advance(TTL + GRAIN + timedelta(seconds=1))


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"[]", b'{"v":1}', b'{"v":1,"token":[],"ttl_seconds":"x"}'])
def test_a_lock_that_someone_overwrote_with_garbage_heals_after_the_ttl(lock, store, clock, garbage):
    ann = lock("ann")
    ann.acquire()
    token = ann.token
    clock.advance(1)
    store.put(KEY, garbage)

    assert lock("bob").acquire() is False
    with pytest.raises(LeaseLost):
        ann.renew()
    clock.advance(TTL + GRAIN + timedelta(seconds=1))
    bob = lock("bob")
    assert bob.acquire() is True
    assert bob.token > token


def test_a_lock_of_a_newer_version_is_left_alone(lock, store, clock):
    store.put(KEY, b'{"v":99}')
    clock.advance(timedelta(days=1))

    with pytest.raises(NewerFormat):
        lock("ann").acquire()
