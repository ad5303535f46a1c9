"""Deaths of messages that ran where nobody publishes them: the sweeper function counts them, each once."""

from __future__ import annotations

import pytest

from s3queue import DeadLetters, QueueSettings, Reject, Sweeper
from s3queue.errors import Unavailable
from s3queue.sweeper.deaths import LISTS


def counting(queue):
    """A sweeper as the function has it for a queue of pull workers or Spark runs."""
    return Sweeper(queue=queue, dispatch=None, counts_hour=True, counts_deaths=True)


def die(bench, queue, path=None, error="no"):
    path = path or queue.enqueue(b"x")
    queue.fail(queue.claim(path), Reject(error))
    return path


def swept(bench, sweeper, minutes=1):
    """The deaths that so many sweeps have counted, a minute apart."""
    deaths = 0
    for _ in range(minutes):
        bench.clock.advance(60)
        deaths += sweeper.sweep().deaths
    return deaths


@pytest.mark.parametrize("settings", [{}, {"history": False}, {"dead_letters": False}])
def test_each_death_is_counted_once_while_the_queue_has_work(bench, settings):
    queue = bench.queue("pulled", **settings)
    held = queue.enqueue(b"work", delay=7200)
    sweeper = counting(queue)
    assert swept(bench, sweeper) == 0
    for deaths in (2, 0, 1, 0):
        for _ in range(deaths):
            die(bench, queue)
        assert swept(bench, sweeper, 2) == deaths
    assert queue.status(held).state == "delayed"


@pytest.mark.parametrize(("settings", "minutes"), [({}, 11), ({"history": False}, 61), ({"dead_letters": False}, 11)])
def test_a_death_between_two_sweeps_of_an_idle_queue_is_found_in_time(bench, settings, minutes):
    queue = bench.queue("pulled", **settings)
    die(bench, queue)
    sweeper = counting(queue)
    assert swept(bench, sweeper, 20) == 1
    die(bench, queue)
    assert swept(bench, sweeper, minutes) == 1
    assert swept(bench, sweeper, 130) == 0


def test_the_first_death_of_an_idle_queue_is_found_by_the_next_sweep(bench):
    queue = bench.queue("pulled", history=False)
    sweeper = counting(queue)
    assert swept(bench, sweeper) == 0
    die(bench, queue)
    assert swept(bench, sweeper) == 1


def test_a_death_in_the_second_in_which_the_work_ends_is_counted(bench):
    queue = bench.queue("pulled", history=False)
    sweeper = counting(queue)
    die(bench, queue)
    swept(bench, sweeper, 70)
    last = queue.enqueue(b"x")
    assert swept(bench, sweeper) == 0
    die(bench, queue, last)
    found = sweeper.sweep().deaths
    assert found + swept(bench, sweeper, 2) == 1


def test_what_is_replayed_and_dies_again_is_another_death(bench):
    queue = bench.queue("pulled")
    sweeper = counting(queue)
    path = die(bench, queue)
    assert swept(bench, sweeper) == 1
    bench.clock.advance(7200)
    assert DeadLetters(queue).replay(path) == path
    assert swept(bench, sweeper) == 0
    die(bench, queue, path)
    assert swept(bench, sweeper, 2) == 1


def test_another_process_counts_nothing_again(bench):
    queue = bench.queue("pulled")
    first, second = counting(queue), counting(bench.queue("pulled", worker_id="another"))
    assert swept(bench, second) == 0
    total = 0
    for turn in range(6):
        die(bench, queue)
        total += swept(bench, first, 2)
        if turn % 2:
            total += second.sweep().deaths
    total += swept(bench, counting(bench.queue("pulled", worker_id="a new process")))
    assert total == 6


def test_lines_that_an_operator_takes_out_of_a_letter_are_no_death(bench):
    queue = bench.queue("pulled", max_attempts=1)
    sweeper = counting(queue)
    (path,) = queue.enqueue_many(["Away", "Bad"])

    def handle(body: str) -> None:
        raise type(body, (Exception,), {})("x")

    bench.processor(queue, handle).run(path)
    assert swept(bench, sweeper) == 1
    bench.clock.advance(600)
    assert DeadLetters(queue).purge(error_type="Bad") == 1
    assert queue.enqueue(b"work")
    assert swept(bench, sweeper, 62) == 0


def test_batches_are_counted_once_all_of_their_letters_were_looked_at(bench):
    queue = bench.queue("pulled", max_attempts=1)
    sweeper = counting(queue)
    assert swept(bench, sweeper) == 0

    def handle(body: str) -> None:
        raise ValueError(body)

    paths = sorted(queue.enqueue_many(["a", "b"], per_object=1))
    for path in paths:
        bench.processor(queue, handle).run(path)

    def refuse(operation, key, perform):
        if operation == "head" and "/dead/" in key and paths[1] in key:
            raise Unavailable("no answer")
        return perform()

    bench.around = refuse
    queue.enqueue(b"work")
    assert swept(bench, sweeper) == 0
    bench.around = None
    assert swept(bench, sweeper, 62) == 2


def test_counting_costs_no_request_in_a_queue_without_letters_or_without_work(bench):
    def requests(*, counts_deaths, dies):
        bench_queue = bench.queue(f"pulled-{counts_deaths}-{dies}".lower())
        if dies:
            die(bench, bench_queue)
        sweeper = Sweeper(queue=bench_queue, dispatch=None, counts_hour=True, counts_deaths=counts_deaths)
        if not dies:
            bench_queue.complete(bench_queue.claim(bench_queue.enqueue(b"x")))
            bench_queue.enqueue(b"work")
        swept(bench, sweeper, 3)
        bench.store.take()
        swept(bench, sweeper, 180)
        return bench.store.take()

    for dies in (False, True):
        assert requests(counts_deaths=True, dies=dies) == requests(counts_deaths=False, dies=dies)


def test_a_busy_queue_with_letters_pays_one_list_a_minute(bench):
    queue = bench.queue("pulled")
    die(bench, queue)
    queue.enqueue(b"work")
    sweeper = counting(queue)
    swept(bench, sweeper, 3)
    bench.store.log.clear()
    swept(bench, sweeper, 10)
    assert [verb for verb, key in bench.store.log if key.startswith("pulled/dead/")] == ["list"] * 10


def test_more_letters_than_a_look_may_list_are_counted_by_the_hourly_clean_up(bench, monkeypatch):
    monkeypatch.setattr("s3queue.sweeper.deaths.LISTS", 1)
    assert LISTS > 1
    queue = bench.queue("pulled", history=False)
    sweeper = counting(queue)
    queue.enqueue(b"work")
    assert swept(bench, sweeper) == 0
    for number in range(1001):
        bench.put(f"pulled/dead/messages/{number:04}", b"x")
    assert swept(bench, sweeper, 62) == 1001


def test_a_look_that_fails_fails_no_sweep_and_is_made_up_for(bench):
    queue = bench.queue("pulled")
    queue.enqueue(b"work")
    sweeper = counting(queue)
    for _ in range(2):
        die(bench, queue)
        swept(bench, sweeper)
    die(bench, queue)

    def refuse(operation, key, perform):
        if operation == "list" and "/dead/" in key:
            raise Unavailable("no answer")
        return perform()

    bench.around = refuse
    assert swept(bench, sweeper) == 0
    bench.around = None
    assert swept(bench, sweeper, 2) == 1


def test_forged_stats_hide_no_death(bench):
    queue = bench.queue("pulled")
    die(bench, queue)
    for forged in (b"x", b'{"deaths_until": 7}', b'{"deaths_until": "2999-01-01T00:00:00Z"}', b"[]"):
        bench.put("pulled/stats.json", forged)
        bench.clock.advance(3)
        assert counting(queue).sweep().deaths == 1


@pytest.mark.parametrize(
    ("settings", "elsewhere"),
    [({}, False), ({"engine": "pull"}, True), ({"engine": "spark"}, True), ({"heavy_above": 1000}, True)],
)
def test_messages_run_elsewhere_with_pull_workers_and_spark(settings, elsewhere):
    assert QueueSettings.of(**settings).runs_elsewhere is elsewhere
