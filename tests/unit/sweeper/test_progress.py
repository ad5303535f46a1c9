"""A queue that is too large for one sweep: every step comes to its end, even if no process lives for two sweeps."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress

import pytest

from s3queue import Flow
from s3queue.errors import AccessDenied, QueueFull
from s3queue.sweeper.progress import Progress
from support.workbench import Workbench


def small_pages(bench: Workbench, keys: int) -> None:
    """LISTs show so many keys at a time, so that a small queue is a large one."""
    inner = bench.memory.list

    def listed(prefix: str, *, after: str = "", delimiter: str = "", limit: int = 1000):
        return inner(prefix, after=after, delimiter=delimiter, limit=min(limit, keys))

    bench.memory.list = listed  # type: ignore[method-assign]


def test_many_leases_do_not_end_every_sweep_at_its_first_step(bench, dispatched):
    small_pages(bench, 3)
    queue = bench.queue()
    for number in range(60):
        queue.claim(queue.enqueue(b"x", name=f"a{number:02d}"), timeout=86_400)
    orphan = queue.enqueue(b"x", name="b")
    due = queue.enqueue(b"x", delay=1)
    crashed = queue.enqueue(b"x", name="a99")
    assert queue.claim(crashed)
    bench.clock.advance(70)
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper"), dispatched)
    endings = 0
    for _ in range(40):
        endings += sweeper.sweep(requests=20).endings.get("retried", 0)
        bench.clock.advance(1)

    assert {orphan, due, crashed} <= set(dispatched)
    assert endings == 1


def test_leases_that_take_many_lists_do_not_keep_due_messages_waiting(bench, dispatched):
    small_pages(bench, 3)
    queue = bench.queue()
    for _ in range(60):
        queue.claim(queue.enqueue(b"x"), timeout=86_400)
    due = queue.enqueue(b"x", delay=1)
    bench.clock.advance(70)

    report = bench.sweeper(bench.queue(worker_id="sweeper"), dispatched).sweep(requests=12)

    assert not report.complete
    assert due in dispatched


def test_a_sweeper_that_is_killed_after_every_sweep_goes_on_where_it_was(bench, dispatched):
    small_pages(bench, 3)
    queue = bench.queue()
    crashed = {queue.enqueue(b"x", name=f"a{number:02d}") for number in range(30)}
    for path in crashed:
        assert queue.claim(path)
    orphans = {queue.enqueue(b"x", name=f"b{number:02d}") for number in range(30)}
    bench.clock.advance(70)
    for _ in range(60):
        bench.sweeper(bench.queue(worker_id="new"), dispatched).sweep(requests=30)
        bench.clock.advance(1)

    assert crashed | orphans <= set(dispatched)
    assert bench.keys("orders/sweep.json")

    bench.sweeper(queue).sweep()
    # The sweep that comes to the end of everything removes it.
    bench.sweeper(queue).sweep()
    assert not bench.keys("orders/sweep.json")


class Died(BaseException):
    pass


def kill_after_the_first_steps(operation: str, key: str, perform):
    if operation == "list" and key.startswith(("orders/leases/", "orders/messages/")):
        raise Died
    return perform()


@pytest.mark.parametrize("is_killed", [False, True], ids=["after each sweep", "within each sweep"])
def test_no_schedule_starves_if_each_sweeper_is_killed(bench, queue, is_killed):
    """[P10] As few as begin with the first one."""
    names = {f"s{number:02}" for number in range(12)}
    for name in names:
        queue.every("* * * * *", name=name)
    queue.claim(queue.enqueue(b"x"), timeout=86_400)
    fired: Counter[str] = Counter()

    for _ in range(40):
        bench.clock.advance(60)
        lying = set(bench.keys("orders/delayed/"))
        bench.around = kill_after_the_first_steps if is_killed else None
        with suppress(Died):
            bench.sweeper(bench.queue(worker_id="new")).sweep(requests=40)
        bench.around = None
        fired.update(key.rpartition("scheduled-")[2] for key in set(bench.keys("orders/delayed/")) - lying)

    assert fired.keys() == names
    assert min(fired.values()) >= max(fired.values()) / 3

    bench.sweeper(queue).sweep()
    bench.sweeper(queue).sweep()
    assert not bench.keys("orders/sweep.json")


@pytest.mark.parametrize("is_killed", [False, True], ids=["after each sweep", "within each sweep"])
@pytest.mark.parametrize("is_idle", [False, True])
def test_no_flow_starves_if_each_sweeper_is_killed(bench, queue, is_killed, is_idle):
    """[P8]"""
    flows = [Flow(queue) for _ in range(9)]
    for flow in flows:
        flow.add("emails", {})
        flow.start()
    if not is_idle:
        queue.claim(queue.enqueue(b"x"), timeout=86_400)
    for flow in flows:
        # Its home is this queue, whose sweeper alone looks after it.
        document = json.loads(bench.read(f"flows/{flow.id}/flow.json"))
        bench.put(f"flows/{flow.id}/flow.json", json.dumps(document | {"home": "orders"}).encode())
        bench.put(f"orders/flows/{flow.id}", b"")
    bench.clock.advance(600)
    bench.store.take()

    for _ in range(12):
        bench.around = kill_after_the_first_steps if is_killed else None
        with suppress(Died):
            bench.sweeper(bench.queue(worker_id="new")).sweep(requests=40)
        bench.around = None
        bench.clock.advance(1)

    looked_at = {key for operation, key in bench.store.log if operation == "get" and key.endswith("/flow.json")}
    assert looked_at == {f"flows/{flow.id}/flow.json" for flow in flows}


def test_a_queue_whose_sweeps_finish_pays_nothing_for_the_progress(bench, queue):
    queue.enqueue(b"x")
    bench.sweeper(queue).sweep()

    assert not [key for _, key in bench.store.log if key == "orders/sweep.json"]


def test_every_request_of_an_expiry_counts(bench):
    queue = bench.queue(max_attempts=1)
    for _ in range(10):
        assert queue.claim(queue.enqueue(b"x"))
    bench.clock.advance(60)
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper", max_attempts=1))
    bench.store.take()

    report = sweeper.sweep()

    # All but the settings.
    assert report.requests == sum(bench.store.take().values()) - 1


def test_one_lease_that_cannot_be_read_does_not_stop_the_others(bench, queue):
    paths = [queue.enqueue(b"x", name=name) for name in "abc"]
    for path in paths:
        assert queue.claim(path)
    bench.clock.advance(60)

    def refuse(operation, key, perform):
        if operation == "get" and key == f"orders/leases/{paths[0]}":
            raise AccessDenied("403")
        return perform()

    bench.around = refuse
    report = bench.sweeper(bench.queue(worker_id="sweeper")).sweep()

    assert report.endings == {"retried": 2}
    assert not report.complete


def test_no_more_is_dispatched_in_one_sweep_than_the_workers_can_use(bench, dispatched):
    queue = bench.queue(concurrency=2)
    paths = {queue.enqueue(b"x") for _ in range(3000)}
    bench.clock.advance(61)
    sweeper = bench.sweeper(queue, dispatched)

    assert sweeper.sweep().orphans == 200
    bench.clock.advance(30)
    # The others are found again, not the same ones.
    assert sweeper.sweep().orphans == 200
    assert len(set(dispatched)) == 400
    assert set(dispatched) < paths


def test_what_a_worker_does_not_take_keeps_its_reminder(bench, queue):
    for _ in range(5):
        queue.fail(queue.claim(queue.enqueue(b"x")), "once", retry_after=1)
    bench.clock.advance(2)
    sweeper = bench.sweeper(queue)
    sweeper.dispatch = lambda paths: 2

    assert sweeper.sweep().due == 2
    assert len(bench.keys("orders/retries/")) == 3


def test_more_than_a_page_of_strangers_under_the_root_hides_nothing(bench, queue, dispatched):
    for number in range(1500):
        bench.put(f"orders/a-stranger-{number:04d}", b"")
    path = queue.enqueue(b"x")
    bench.clock.advance(61)

    assert queue.stats().pending == 1
    assert bench.sweeper(queue, dispatched).sweep().orphans == 1
    assert queue.claim_next()[0].path == path


def test_plain_names_that_look_like_priorities_hide_no_priority(bench, queue):
    for number in range(3500):
        bench.put(f"orders/messages/p100{number:04d}.json", b"1")
    urgent = queue.enqueue(b"x", priority=200)
    more_urgent = queue.enqueue(b"x", priority=255)

    assert [claim.path for claim in queue.claim_next(2)] == [more_urgent, urgent]


def test_max_depth_holds_beyond_the_reach_of_one_sweep(bench):
    small_pages(bench, 3)
    queue = bench.queue(max_depth=50)
    filler = bench.queue()
    for _ in range(60):
        filler.enqueue(b"x")
    sweeper = bench.sweeper(bench.queue(worker_id="sweeper"))
    for _ in range(12):
        sweeper.sweep(requests=8)
        bench.clock.advance(1)

    # In the middle of the next round, too, and in a new process.
    for one in (sweeper, bench.sweeper(bench.queue(worker_id="new"))):
        one.sweep(requests=8)
        bench.clock.advance(60)
        try:
            queue.enqueue(b"x")
        except QueueFull:
            continue
        raise AssertionError("not refused")


@pytest.mark.parametrize(
    "forged", [{"flows": "\ud800"}, {"leases": "x" * 1029}, {"messages": 5}, {"pending": -1}, {"pending": True}]
)
def test_progress_from_which_nobody_could_go_on_is_none(bench, queue, forged):
    """A request with such a cursor fails, in every sweep, and the document would stay for ever."""
    body = json.dumps({"v": 1, "overdue": "messages/a"}).encode()
    bench.memory.put(queue.keys.progress, body)
    root = bench.memory.list(queue.keys.root, delimiter="/")
    assert Progress.read(queue, bench.memory, root).overdue == "messages/a"
    bench.memory.put(queue.keys.progress, json.dumps(json.loads(body) | forged).encode())
    assert Progress.read(queue, bench.memory, root) == Progress()
