"""An object of which even a HEAD is refused (SSE-C) ends no count and no clean-up."""

from __future__ import annotations

import pytest

from s3queue import Reject, Sweeper
from support.counting_store import CountingStore
from support.forged_documents import FOREIGN, ForgedStore
from support.workbench import Workbench

LETTER = "orders/dead/messages/stranger.ndjson.lines"


@pytest.fixture
def bench() -> Workbench:
    bench = Workbench()
    bench.memory = ForgedStore("bench", clock=bench.clock, around=bench._request)
    bench.store = CountingStore(bench.memory)
    return bench


def test_cleanup_deletes_it_and_what_comes_after_it(bench):
    queue = bench.queue()
    bench.put("orders/records/messages/a", FOREIGN)
    queue.complete(queue.claim(queue.enqueue(b"x", name="b")))
    bench.clock.advance(30 * 86400)

    assert queue.cleanup() == 2
    assert not bench.keys("orders/")


def test_a_letter_of_it_counts_as_one_message(bench):
    queue = bench.queue()
    bench.put(LETTER, FOREIGN)

    stats = queue.stats()

    assert (stats.dead, stats.at_least) == (1, ("dead",))


def test_deaths_are_counted_beside_it(bench):
    queue = bench.queue()
    queue.enqueue(b"work", delay=7200)
    bench.put(LETTER, FOREIGN)
    sweeper, deaths = Sweeper(queue=queue, dispatch=None, counts_hour=True, counts_deaths=True), 0

    for _ in range(3):
        queue.fail(queue.claim(queue.enqueue(b"x")), Reject("no"))
        bench.clock.advance(61)
        deaths += sweeper.sweep().deaths

    assert deaths == 4
