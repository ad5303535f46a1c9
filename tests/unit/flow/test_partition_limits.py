"""Rates and breakers of queues with partitions.  [P9]"""

from __future__ import annotations

import pytest


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
