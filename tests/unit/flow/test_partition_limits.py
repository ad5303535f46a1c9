"""Rates and breakers of queues with partitions.  [P9]"""

from __future__ import annotations

import pytest

from s3queue.flow.limiter import RateLimiter


def _run(bench, queue, handler, path):
    return bench.processor(queue, handler).run(path)


@pytest.mark.parametrize("collect", [0, 10])
def test_the_first_messages_of_a_process_keep_the_rate_too(bench, collect):
    queue, calls = bench.queue(partitions=1, rate="10/min", collect=collect, within_seconds=0), []
    paths = [queue.enqueue({"n": number}) for number in range(30)]

    def single(body: dict) -> None:
        calls.append(body)

    def several(bodies: list[dict]) -> None:
        calls.extend(bodies)

    _run(bench, queue, several if collect else single, paths[0])

    assert len(calls) == 10


def test_a_process_that_has_just_started_knows_an_open_breaker(bench):
    settings = {"partitions": 1, "breaker": {"failures": 1, "pause_seconds": 60}}
    queue, later, calls = bench.queue(**settings), bench.queue(**settings), []
    paths = [queue.enqueue({"n": number}) for number in range(3)]
    queue.force_breaker("open")

    _run(bench, later, calls.append, paths[0])

    assert calls == []
    assert len(bench.keys("orders/messages/")) == 3


def test_each_folder_of_a_share_has_the_rate_for_itself(bench):
    queue, calls = bench.queue(partitions=1, rate="10/min", rate_key="folder"), []
    for number in range(30):
        queue.enqueue({"for": "a"}, name=f"a/{number:03}")
    for number in range(5):
        path = queue.enqueue({"for": "b"}, name=f"b/{number:03}")

    _run(bench, queue, lambda body: calls.append(body["for"]), path)

    assert (calls.count("a"), calls.count("b")) == (10, 5)
    [reminder] = bench.keys("orders/retries/")
    due_at, _ = queue.keys.reminded(reminder)
    assert 50 <= (due_at - bench.clock.now()).total_seconds() <= 70, "when the folder that is held back has tokens"


def test_a_folder_without_tokens_hides_no_other(bench, monkeypatch):
    monkeypatch.setattr("s3queue.flow.partition_window.PAGE", 20)
    queue, calls = bench.queue(partitions=1, rate="10/min", rate_key="folder"), []
    for number in range(60):
        path = queue.enqueue({"for": "a"}, name=f"a/{number:03}")
    _run(bench, queue, lambda body: calls.append(body["for"]), path)
    queue.enqueue({"for": "b"}, name="b/1")

    _run(bench, queue, lambda body: calls.append(body["for"]), path)

    assert (calls.count("a"), calls.count("b")) == (10, 1)


def test_a_folder_without_tokens_hides_no_other_however_many_messages_it_has(bench, monkeypatch):
    monkeypatch.setattr("s3queue.flow.partition_window.PAGE", 5)
    queue, calls = bench.queue(partitions=1, rate="10/min", rate_key="folder"), []
    for number in range(200):
        path = queue.enqueue({"for": "a"}, name=f"a/{number:03}")
    for name in ("a0", "a~/1", "b/1"):
        queue.enqueue({"for": name}, name=name)

    _run(bench, queue, lambda body: calls.append(body["for"]), path)

    assert sorted(calls) == ["a"] * 10 + ["a0", "a~/1", "b/1"]


def test_a_folder_that_is_named_like_a_priority_hides_none_that_lies_in_it(bench, monkeypatch):
    monkeypatch.setattr("s3queue.flow.partition_window.PAGE", 20)
    queue, calls = bench.queue(partitions=1, rate="10/min", rate_key="folder"), []
    for number in range(60):
        bench.put(f"orders/messages/@=0/p001/p001/{number:03}", b'{"for": "p001"}')
    bench.put("orders/messages/@=0/p001/q/1", b'{"for": "q"}')

    _run(bench, queue, lambda body: calls.append(body["for"]), "messages/@=0/x")

    assert (calls.count("p001"), calls.count("q")) == (10, 1)


def test_a_share_whose_folders_have_no_tokens_asks_to_be_called_again(bench):
    queue, calls = bench.queue(partitions=1, rate="10/min", rate_key="folder"), []
    for number in range(12):
        path = queue.enqueue({}, name=f"a/{number:03}")
    _run(bench, queue, calls.append, path)
    reminders = bench.keys("orders/retries/")
    bench.memory.delete(reminders[0])

    _run(bench, queue, calls.append, path)

    assert len(calls) == 10
    assert bench.keys("orders/retries/") == reminders
    bench.clock.advance(70)
    _run(bench, queue, calls.append, path)
    assert len(calls) == 12


@pytest.mark.parametrize("rate_key", ["", "folder"])
def test_a_share_whose_rate_is_switched_off_between_wait_and_enter_goes_on(bench, monkeypatch, rate_key):
    """Another thread of this worker reads `queue.json` meanwhile, and asks for the limits."""
    queue, calls = bench.queue(partitions=1, rate="100/min", rate_key=rate_key), []
    paths = [queue.enqueue({"n": number}, name=f"a/{number}") for number in range(5)]
    wait = RateLimiter.wait

    def meanwhile(limiter: RateLimiter, path: str) -> float:
        found = wait(limiter, path)
        if len(calls) == 2 and queue.settings.rate:
            queue.configure(rate="off")
            queue.held_for()
        return found

    monkeypatch.setattr(RateLimiter, "wait", meanwhile)

    _run(bench, queue, lambda body: calls.append(body["n"]), paths[0])

    assert sorted(calls) == [0, 1, 2, 3, 4]
    assert bench.keys("orders/leases/") == []
