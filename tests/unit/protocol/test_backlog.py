"""Backlog: a window of messages that may run, most urgent first, which no thread is handed twice."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3queue import Unavailable
from s3queue.protocol.backlog import CHOICES, FRESH_SECONDS, MISSES, WINDOW, Backlog
from support.threads import PATIENCE, eventually


@pytest.fixture
def backlog(queue):
    return Backlog(queue)


def taken(backlog: Backlog) -> list[str]:
    """All that is left of the window."""
    paths = []
    while candidate := backlog.take():
        paths.append(candidate.path)
    return paths


def test_nothing_is_handed_out_before_the_first_look(queue, backlog):
    queue.enqueue(b"x")

    assert backlog.take() is None
    assert backlog.refill() == 1
    assert backlog.take() is not None
    assert backlog.take() is None


def test_an_idle_queue_costs_one_list(bench, backlog):
    bench.store.take()

    assert backlog.refill() == 0
    assert bench.store.take() == {"list": 1}


def test_a_full_window_costs_two_lists_and_one_more_if_anything_is_at_work(bench, queue, backlog):
    for number in range(WINDOW):
        bench.put(f"orders/messages/{number:04d}", b"x")
    bench.store.take()

    assert backlog.refill() == WINDOW
    assert bench.store.take() == {"list": 2}

    queue.claim(backlog.take().path)
    bench.store.take()
    assert backlog.refill() == WINDOW - 1
    assert bench.store.take() == {"list": 3}


def test_the_more_urgent_come_first_whatever_their_age(bench, queue, backlog):
    ordinary = [queue.enqueue(b"x") for _ in range(3)]
    bench.clock.advance(60)
    higher = [queue.enqueue(b"x", priority=7) for _ in range(3)]
    bench.clock.advance(60)
    urgent = queue.enqueue(b"x", priority=200)
    backlog.refill()

    order = taken(backlog)

    assert order[0] == urgent
    assert sorted(order[1:4]) == sorted(higher)
    assert sorted(order[4:]) == sorted(ordinary)


def test_workers_choose_at_random_among_the_oldest_of_equal_urgency(bench, queue):
    # The older, the later their names: it is not by name that they are chosen.
    paths = [f"messages/{99 - number}" for number in range(3 * CHOICES)]
    for path in paths:
        bench.put(f"orders/{path}", b"x")
        bench.clock.advance(1)
    first = set()
    for _ in range(300):
        backlog = Backlog(queue)
        backlog.refill()
        first.add(backlog.take().path)

    assert first == set(paths[:CHOICES])


def test_what_is_at_work_or_waits_is_no_candidate(queue, backlog):
    at_work, waits, free = (queue.enqueue(b"x") for _ in range(3))
    queue.claim(at_work)
    queue.fail(queue.claim(waits), "once")
    backlog.refill()

    assert taken(backlog) == [free]


def test_what_waited_is_a_candidate_once_it_is_due_and_its_lease_is_to_be_read_first(bench, queue, backlog):
    waits, delayed = queue.enqueue(b"x"), queue.enqueue(b"x", delay=60)
    queue.fail(queue.claim(waits), "once", retry_after=60)
    assert backlog.refill() == 0

    bench.clock.advance(61)
    assert backlog.refill() == 2
    found = [backlog.take(), backlog.take()]

    assert {(one.path, one.read_first) for one in found} == {(waits, True), (delayed, True)}


def test_a_message_of_the_wrong_size_is_left_out(bench, queue):
    small, large = queue.enqueue(b"x"), queue.enqueue(b"x" * 100)
    light, heavy = Backlog(queue, wants=lambda size: size < 10), Backlog(queue, wants=lambda size: size >= 10)
    light.refill()
    heavy.refill()

    assert (taken(light), taken(heavy)) == ([small], [large])


def test_a_folder_placeholder_is_no_candidate(bench, backlog):
    bench.put("orders/messages/", b"")

    assert backlog.refill() == 0


def test_a_look_turns_pages_until_it_finds_what_nobody_works_on(bench, queue, backlog):
    for number in range(WINDOW):
        bench.put(f"orders/messages/a{number:04d}", b"x")
        queue.claim(f"messages/a{number:04d}")
    bench.put("orders/messages/b", b"x")
    backlog.refill()

    assert taken(backlog) == ["messages/b"]


def test_what_is_in_hand_is_not_found_again(queue, backlog):
    mine, other = queue.enqueue(b"x"), queue.enqueue(b"x")

    assert backlog.refill([mine]) == 1
    assert taken(backlog) == [other]


def test_what_is_handed_out_while_a_look_is_under_way_is_not_found_again(bench, queue, backlog):
    paths = {queue.enqueue(b"x") for _ in range(3)}
    backlog.refill()
    meanwhile = []

    def take_one(operation, key, perform):
        answer = perform()
        if operation == "list" and not meanwhile:
            meanwhile.append(backlog.take().path)
        return answer

    bench.around = take_one
    assert backlog.refill() == 2

    assert set(taken(backlog)) == paths - set(meanwhile)
    # The next look knows nothing of it: by then it has a lease, or may run again.
    assert backlog.refill() == 3


class CountedLock:
    """A lock that tells how many have asked for it."""

    def __init__(self) -> None:
        self.asked = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.asked += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_thread_that_waited_for_anothers_look_does_not_look_again(bench, queue, backlog):
    queue.enqueue(b"x")
    backlog._refill_mutex = mutex = CountedLock()
    is_looking, go_on = threading.Event(), threading.Event()

    def hold_up(operation, key, perform):
        is_looking.set()
        assert go_on.wait(PATIENCE)
        return perform()

    bench.around = hold_up
    bench.store.take()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(backlog.refill)
        assert is_looking.wait(PATIENCE)
        second = threads.submit(backlog.refill)
        eventually(lambda: mutex.asked == 2)
        go_on.set()
        assert (first.result(PATIENCE), second.result(PATIENCE)) == (1, 1)

    assert bench.store.take() == {"list": 2}


def test_a_window_is_stale_after_a_while_because_something_more_urgent_may_have_come(bench, queue, backlog):
    for _ in range(3):
        queue.enqueue(b"x")
    backlog.refill()
    bench.clock.advance(FRESH_SECONDS)
    assert backlog.take() is not None

    bench.clock.advance(1)
    assert backlog.take() is None
    assert backlog.refill() == 3


def test_a_window_counts_from_before_it_was_listed(bench, queue, backlog):
    queue.enqueue(b"x")

    def slow(operation, key, perform):
        bench.clock.advance(FRESH_SECONDS)
        return perform()

    bench.around = slow
    assert backlog.refill() == 1
    assert backlog.take() is None


def test_a_window_that_others_empty_is_given_up_after_a_few_lost_claims(queue, backlog):
    for _ in range(10):
        queue.enqueue(b"x")
    backlog.refill()
    for _ in range(MISSES - 1):
        backlog.take()
        backlog.report(won=False)
    backlog.take()
    backlog.report(won=True)
    for _ in range(MISSES):
        assert backlog.take() is not None
        backlog.report(won=False)

    assert backlog.take() is None
    assert backlog.refill() == 10
    assert backlog.take() is not None


def test_a_backlog_is_fruitless_when_a_look_found_nothing_that_could_be_claimed(queue, backlog):
    assert not backlog.is_fruitless()
    backlog.refill()
    assert backlog.is_fruitless()

    queue.enqueue(b"x")
    backlog.refill()
    assert not backlog.is_fruitless()
    backlog.take()
    backlog.report(won=False)
    assert backlog.is_fruitless()


def test_a_backlog_of_which_something_was_claimed_is_worth_another_look(queue, backlog):
    queue.enqueue(b"x")
    backlog.refill()
    backlog.take()
    backlog.report(won=True)

    assert not backlog.is_fruitless()


def test_a_look_that_failed_has_found_nothing_out(bench, queue, backlog):
    queue.enqueue(b"x")

    def fail(operation, key, perform):
        raise Unavailable("503 SlowDown")

    bench.around = fail
    with pytest.raises(Unavailable):
        backlog.refill()

    assert not backlog.is_fruitless()
    bench.around = None
    assert backlog.refill() == 1


def test_it_is_time_to_look_ahead_when_a_full_window_is_nearly_used_up(bench, backlog):
    for number in range(WINDOW):
        bench.put(f"orders/messages/{number:04d}", b"x")
    backlog.refill()
    assert not backlog.is_running_low(8)
    for _ in range(WINDOW - 9):
        backlog.take()
    assert not backlog.is_running_low(8)

    backlog.take()
    assert backlog.is_running_low(8)


def test_a_window_that_was_not_full_had_everything_in_it(bench, backlog):
    for number in range(WINDOW - 1):
        bench.put(f"orders/messages/{number:04d}", b"x")
    backlog.refill()
    taken(backlog)

    assert not backlog.is_running_low(8)


def test_a_drain_looks_until_nothing_more_can_be_claimed(bench, queue, backlog):
    for number in range(WINDOW + 10):
        bench.put(f"orders/messages/{number:04d}", b"x")
    claimed = []
    for candidate in backlog.drain():
        claim = queue.claim(candidate.path)
        backlog.report(won=claim is not None)
        claimed.append(candidate.path)

    assert len(claimed) == len(set(claimed)) == WINDOW + 10


def test_a_drain_whose_finds_all_belong_to_others_ends(queue, backlog):
    for _ in range(MISSES + 2):
        queue.enqueue(b"x")
    tried = 0
    for _ in backlog.drain():
        backlog.report(won=False)
        tried += 1

    assert tried == MISSES


def wait(bench, queue, count, *, seconds=3600, **options):
    """Messages that failed once, and wait for their next attempt."""
    paths = [queue.enqueue(b"x", **options) for _ in range(count)]
    bench.clock.advance(options.get("delay", 0) + 1)
    for path in paths:
        queue.fail(queue.claim(path, read_first=True), "later", retry_after=seconds)
    return paths


def test_a_delayed_message_that_is_at_work_or_waits_is_no_candidate(bench, queue, backlog):
    wait(bench, queue, 1, delay=5)
    at_work, free = queue.enqueue(b"x", delay=5), queue.enqueue(b"x", delay=5)
    bench.clock.advance(10)
    assert queue.claim(at_work)
    backlog.refill()

    assert taken(backlog) == [free]


def test_delayed_messages_that_wait_do_not_hide_the_next_page(bench, queue, backlog):
    for number in range(WINDOW):
        bench.put(f"orders/delayed/20200101T000000Z/{number:04d}", b"x")
        bench.put(f"orders/leases/delayed/20200101T000000Z/{number:04d}", b"{}")
    bench.put("orders/delayed/20200102T000000Z/free", b"x")
    bench.put("orders/delayed/20990101T000000Z/later", b"x")
    backlog.refill()

    assert taken(backlog) == ["delayed/20200102T000000Z/free"]


def test_the_leases_of_delayed_and_other_messages_are_listed_once(bench, queue, backlog):
    wait(bench, queue, 3, delay=5)
    wait(bench, queue, 3, seconds=1)
    queue.enqueue(b"x", delay=5)
    queue.enqueue(b"x")
    bench.clock.advance(10)
    bench.store.take()

    # Three retries that are due, and two messages without a lease.
    assert backlog.refill() == 5
    # The root, retries, delayed, messages, leases.
    assert bench.store.take() == {"list": 5}


def test_a_hint_that_leads_nowhere_says_nothing_about_the_window(queue, backlog):
    for _ in range(10):
        queue.enqueue(b"x")
    backlog.refill()
    for _ in range(2 * MISSES):
        backlog.report(won=False, is_hint=True)

    assert backlog.take() is not None


def compete(bench, workers: int, messages: int) -> tuple[int, list[str]]:
    """Workers drain one queue message by message in turns; how many claims they tried, and what each round finished."""
    for number in range(messages):
        bench.put(f"orders/messages/{number:04d}", b"x")
    queues = [bench.queue(worker_id=f"worker-{number}") for number in range(workers)]
    backlogs = [Backlog(queue) for queue in queues]
    draining = {number: backlog.drain() for number, backlog in enumerate(backlogs)}
    tried, order = 0, []
    while draining:
        for number, drain in list(draining.items()):
            candidate = next(drain, None)
            if candidate is None:
                del draining[number]
                continue
            tried += 1
            claim = queues[number].claim(candidate.path)
            backlogs[number].report(won=claim is not None)
            if claim:
                queues[number].complete(claim)
                order.append(candidate.path)
    return tried, order


@pytest.mark.parametrize(("workers", "messages"), [(2, 400), (10, 800)])
def test_workers_that_drain_one_queue_seldom_claim_what_another_has_taken(bench, workers, messages):
    tried, order = compete(bench, workers, messages)

    assert len(order) == len(set(order)) == messages
    assert tried < 1.15 * messages


def test_the_oldest_message_does_not_wait_for_all_others(bench):
    _, order = compete(bench, 10, 800)

    assert order.index("messages/0000") < 400
