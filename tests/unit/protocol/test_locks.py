"""Lock: never two holders, never a lock that nobody can get, and a token that only grows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from s3queue.documents.lease import GRAIN
from s3queue.errors import Conflict, InvalidName, InvalidRequest, LeaseLost
from s3queue.protocol.locks import Lock, break_lock, list_locks, read_lock
from s3queue.stores.memory import MemoryStore
from support.counting_store import CountingStore
from support.sample_lock import KEY, KEYS, TTL


def test_a_free_lock_is_acquired_and_a_held_one_is_not(lock):
    ann, bob = lock("ann"), lock("bob")

    assert ann.acquire() is True
    assert bob.acquire() is False
    assert (ann.is_held, bob.is_held) == (True, False)
    assert ann.remaining() == TTL


def test_a_released_lock_is_free_for_the_next(lock):
    ann, bob = lock("ann"), lock("bob")
    ann.acquire()

    ann.release()

    assert not ann.is_held
    assert bob.acquire() is True


def test_the_token_grows_with_every_acquisition_and_is_kept_by_a_released_lock(lock, clock):
    tokens = []
    for round_ in range(5):
        holder = lock(f"holder {round_}")
        assert holder.acquire()
        tokens.append(holder.token)
        if round_ == 2:
            clock.advance(TTL + GRAIN + timedelta(seconds=1))
        else:
            holder.release()

    assert tokens == [tokens[0] + number for number in range(5)]


def test_the_token_grows_even_when_the_sweeper_has_removed_the_lock(lock, store, clock):
    ann, bob = lock("ann"), lock("bob")
    for _ in range(1000):
        ann.acquire()
        ann.release()
    ann.acquire()
    token = ann.token
    clock.advance(timedelta(days=1))
    store.delete(KEY)

    bob.acquire()

    assert bob.token > token


def test_a_renewal_keeps_the_token_and_moves_the_deadline(lock, clock):
    ann, bob = lock("ann"), lock("bob")
    ann.acquire()
    token = ann.token

    for _ in range(10):
        clock.advance(4)
        ann.renew()
        assert bob.acquire() is False

    assert ann.token == token
    assert ann.remaining() == TTL


def test_a_silent_holder_is_taken_over_after_its_ttl_and_not_before(lock, clock):
    ann, bob = lock("ann"), lock("bob")
    ann.acquire()

    clock.advance(TTL + GRAIN)
    assert bob.acquire() is False

    clock.advance(1)
    assert bob.acquire() is True


def test_it_is_the_holders_ttl_that_counts_and_not_the_challengers(lock, clock):
    patient, hasty = lock("patient", timedelta(minutes=10)), lock("hasty", timedelta(seconds=1))
    patient.acquire()

    clock.advance(timedelta(minutes=9))

    assert hasty.acquire() is False


def test_a_holder_knows_that_its_time_is_over_before_anyone_can_take_over(lock, clock):
    ann, bob = lock("ann"), lock("bob")
    ann.acquire()

    clock.advance(TTL)

    assert not ann.is_held
    with pytest.raises(LeaseLost):
        ann.check()
    assert bob.acquire() is False


def test_a_paused_holder_cannot_renew(lock, clock):
    ann, bob = lock("ann"), lock("bob")
    ann.acquire()
    clock.advance(TTL + GRAIN + timedelta(seconds=1))
    bob.acquire()

    with pytest.raises(LeaseLost):
        ann.renew()

    assert bob.is_held
    bob.renew()


def test_a_paused_holder_cannot_renew_even_if_nobody_came(lock, clock):
    ann = lock("ann")
    ann.acquire()
    clock.advance(TTL)

    with pytest.raises(LeaseLost):
        ann.renew()


def test_a_paused_holder_cannot_free_the_lock_of_its_successor(lock, clock):
    ann, bob = lock("ann"), lock("bob")
    ann.acquire()
    clock.advance(TTL + GRAIN + timedelta(seconds=1))
    bob.acquire()

    with pytest.raises(LeaseLost):
        ann.release()

    assert lock("eve").acquire() is False


def test_a_deadline_counts_from_before_the_request_was_sent(clock):
    def slow(operation, key, perform):
        answer = perform()
        if operation == "put":
            clock.advance(2)
        return answer

    ann = Lock(MemoryStore(clock=clock, around=slow), KEY, TTL, clock=clock)

    assert ann.acquire()
    assert ann.remaining() == TTL - timedelta(seconds=2)


def test_a_lock_that_was_won_too_late_is_not_held(clock):
    slow = [True]

    def around(operation, key, perform):
        answer = perform()
        if operation == "put" and slow:
            slow.pop()
            clock.advance(TTL)
        return answer

    ann = Lock(MemoryStore(clock=clock, around=around), KEY, TTL, clock=clock)

    assert ann.acquire() is False
    assert ann.acquire() is True


def test_waiting_ends_when_the_lock_comes_free(lock, clock):
    ann, bob = lock("ann"), lock("bob")
    ann.acquire()

    assert bob.acquire(wait=timedelta(minutes=1)) is True
    assert TTL < timedelta(seconds=clock.monotonic()) < TTL + GRAIN + timedelta(seconds=2)


def test_waiting_ends_when_the_time_is_over(lock, clock):
    ann, bob = lock("ann", timedelta(hours=1)), lock("bob")
    ann.acquire()

    assert bob.acquire(wait=3) is False
    assert clock.monotonic() == pytest.approx(3)
    assert max(clock.sleeps) <= 1


def test_a_waiter_asks_with_growing_pauses(lock, store, clock):
    counting = CountingStore(store)
    lock("ann", timedelta(hours=1)).acquire()

    lock("bob", on=counting).acquire(wait=60)

    assert counting.requests["get"] < 130
    assert counting.requests["put"] == 0


def test_an_uncontended_lock_costs_a_read_and_two_writes(lock, store):
    counting = CountingStore(store)

    with lock("ann", on=counting).held():
        pass

    assert counting.take() == {"get": 1, "put": 2}


def test_a_block_runs_with_the_lock_and_releases_it(lock):
    ann, bob = lock("ann"), lock("bob")

    with ann as held:
        assert held.is_held
        assert bob.acquire() is False

    assert bob.acquire() is True


def test_a_block_whose_lock_is_held_elsewhere_does_not_run(lock):
    lock("ann").acquire()

    with pytest.raises(Conflict), lock("bob").held(wait=0):
        pytest.fail("the block ran")


def test_a_block_that_fails_releases_the_lock_and_keeps_its_error(lock):
    with pytest.raises(ZeroDivisionError), lock("ann"):
        _ = 1 / 0

    assert lock("bob").acquire() is True


def test_a_block_that_ran_for_longer_than_its_lock_is_told(lock, clock):
    bob = lock("bob")

    def overrun() -> None:
        with lock("ann"):
            clock.advance(timedelta(minutes=1))
            bob.acquire()

    with pytest.raises(LeaseLost):
        overrun()
    assert bob.is_held


def test_what_is_not_held_cannot_be_renewed_and_has_no_token(lock):
    ann = lock("ann")

    for ask in (ann.renew, ann.check, lambda: ann.token):
        with pytest.raises(LeaseLost):
            ask()
    ann.release()


@pytest.mark.parametrize("name", ["", "monthly", "reports/messages/a", "reports/locks/", "reports/locks/../x"])
def test_a_lock_lies_under_locks_and_nowhere_else(store, name):
    with pytest.raises(InvalidName):
        Lock(store, name)


def test_a_lock_that_lives_no_time_is_refused(store):
    with pytest.raises(InvalidRequest):
        Lock(store, KEY, 0)


def test_an_operator_sees_who_holds_what_since_when(store, clock):
    for name, ttl in (("monthly", 60), ("stale one", 5), ("free/one", 5)):
        Lock(store, KEYS.lock(name), ttl, owner=f"owner of {name}", clock=clock).acquire()
    Lock(store, KEYS.lock("other"), clock=clock).acquire()
    store.put(KEYS.lock("garbage"), b"?")
    break_lock(store, KEYS.lock("free/one"))
    since = clock.now()
    clock.advance(20)

    found = {state.name: state for state in list_locks(store, KEYS)}

    assert {name: state.state for name, state in found.items()} == {
        "monthly": "held",
        "stale one": "stale",
        "other": "stale",
        "free/one": "free",
        "garbage": "unreadable",
    }
    assert (found["monthly"].owner, found["monthly"].since_at) == ("owner of monthly", since)
    assert found["monthly"].age == timedelta(seconds=20)


def test_since_when_does_not_move_with_a_renewal(lock, store, clock):
    ann = lock("ann")
    since = clock.now()
    ann.acquire()
    clock.advance(3)
    ann.renew()

    assert read_lock(store, KEY).since_at == since


def test_an_operator_breaks_a_lock_and_its_holder_finds_out(lock, store):
    ann, bob = lock("ann", timedelta(hours=1)), lock("bob")
    ann.acquire()
    token = ann.token

    assert break_lock(store, KEY).owner == "ann"

    assert bob.acquire() is True
    assert bob.token > token
    with pytest.raises(LeaseLost):
        ann.renew()


def test_breaking_what_is_free_or_was_never_there_changes_nothing(lock, store):
    assert break_lock(store, KEY) is None

    with lock("ann"):
        pass
    etag = store.head(KEY).etag

    assert break_lock(store, KEY).state == "free"
    assert store.head(KEY).etag == etag
