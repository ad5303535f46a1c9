"""Prometheus reads what a pull worker counts, over real HTTP, as its own parser understands it."""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from s3queue import Cancelled, Context, InvalidRequest, Reject, Retry, Worker
from s3queue.worker.metrics import MetricsServer, exposition
from s3queue.worker.statistics import BOUNDS, HandlerTimes
from s3queue.worker.sweep_turns import SweepTurns


def scraped(url: str) -> dict[str, float]:
    """Every sample, as `name{label=value}`."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return parsed(answer.read().decode())


def parsed(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for one in family.samples:
            assert one.labels["queue"]
            more = "".join(f",{name}={value}" for name, value in one.labels.items() if name != "queue")
            key = f"{one.name}{{{one.labels['queue']}{more}}}"
            assert key not in found
            found[key] = one.value
    return found


def worked(bench, name: str = "orders", **settings) -> Worker:
    """A worker that has completed two messages, retried one and buried one."""
    queue = bench.queue(name, concurrency=1, **settings)

    def handler(body: dict, context: Context) -> None:
        bench.clock.advance(body["seconds"])
        if body.get("dies"):
            raise Reject("no")
        if body.get("fails"):
            raise Retry("later", after=3600)

    for body in ({"seconds": 0.2}, {"seconds": 0.004}, {"seconds": 2, "fails": 1}, {"seconds": 0.09, "dies": 1}):
        queue.enqueue(body)
    worker = Worker(queue, handler, sweep=False)
    worker.run_until_empty()
    return worker


def test_prometheus_reads_what_the_worker_counts(bench):
    worker = worked(bench)

    with MetricsServer([worker], port=0) as server:
        assert server.url == f"http://127.0.0.1:{server.port}/metrics"
        found = scraped(server.url)

    assert {name: found[f"s3queue_{name}_total{{orders}}"] for name in worker.stats() if name != "running"} == {
        "processed": 4,
        "succeeded": 2,
        "failed": 2,
        "retried": 1,
        "dead": 1,
        "cancelled": 0,
        "released": 0,
        "lost": 0,
    }
    assert found["s3queue_in_progress{orders}"] == 0
    assert found["s3queue_handler_seconds_count{orders}"] == 4
    assert found["s3queue_handler_seconds_sum{orders}"] == pytest.approx(2.294)
    # Cumulative: at most so many seconds.
    assert [found[f"s3queue_handler_seconds_bucket{{orders,le={bound}}}"] for bound in (*map(str, BOUNDS), "+Inf")] == [
        1, 1, 1, 1, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4,
    ]  # fmt: skip


def test_each_queue_has_its_label_and_each_family_one_header(bench):
    workers = [worked(bench, "orders"), worked(bench, "emails")]

    text = exposition(workers)

    found = parsed(text)
    assert found["s3queue_succeeded_total{orders}"] == found["s3queue_succeeded_total{emails}"] == 2
    headers = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(headers) == len(set(headers)) == 10


def test_a_message_that_runs_is_in_progress(bench):
    queue = bench.queue(concurrency=1)
    queue.enqueue({})
    runs, may_end = threading.Event(), threading.Event()

    def handler(body: dict) -> None:
        runs.set()
        assert may_end.wait(30)

    worker = Worker(queue, handler, sweep=False)
    worker.start()
    try:
        with MetricsServer([worker], port=0) as server:
            assert runs.wait(30)
            assert scraped(server.url)["s3queue_in_progress{orders}"] == 1
            assert scraped(server.url)["s3queue_handler_seconds_count{orders}"] == 0
    finally:
        may_end.set()
        worker.stop()
    assert worker.stats()["succeeded"] == 1


def test_the_backlog_is_told_while_it_is_this_workers_turn_to_sweep_and_costs_nothing(bench):
    ours = Worker(bench.queue(worker_id="ours"), lambda body: None)
    theirs = Worker(bench.queue(worker_id="theirs"), lambda body: None)
    for _ in range(3):
        ours.queue.enqueue({})
    ours.queue.enqueue({}, delay=3600)
    bench.clock.advance(30)
    assert "s3queue_pending" not in exposition([ours]), "nobody has counted"

    for worker in (ours, theirs):
        worker._sweep_in_turn(SweepTurns(worker.queue))

    before = dict(bench.store.requests)
    found = parsed(exposition([ours]))
    assert dict(bench.store.requests) == before
    assert found["s3queue_pending{orders}"] == 3
    assert found["s3queue_delayed{orders}"] == 1
    assert found["s3queue_waiting{orders}"] == 0
    assert found["s3queue_oldest_seconds{orders}"] == 30
    assert found["s3queue_counted_timestamp_seconds{orders}"] == bench.clock.now().timestamp()
    assert "s3queue_pending" not in exposition([theirs]), "the other one sweeps"


def test_a_count_is_forgotten_when_another_worker_sweeps(bench):
    queue = bench.queue(worker_id="ours")
    worker, turns = Worker(queue, lambda body: None), SweepTurns(queue)
    queue.enqueue({})
    worker._sweep_in_turn(turns)
    assert parsed(exposition([worker]))["s3queue_pending{orders}"] == 1

    turns.lock.release()
    other = bench.queue(worker_id="theirs")
    Worker(other, lambda body: None)._sweep_in_turn(SweepTurns(other))
    worker._sweep_in_turn(turns)

    assert "s3queue_pending" not in exposition([worker])


def test_a_port_that_is_taken_is_an_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequest, match=f"127.0.0.1, port {port}: .*choose another"):
            MetricsServer([], port=port)


def test_a_host_that_is_not_this_machines_is_an_error():
    with pytest.raises(InvalidRequest, match=r"192\.0\.2\.1, port 0"):
        MetricsServer([], port=0, host="192.0.2.1")


def test_other_paths_and_methods_are_refused(bench):
    with MetricsServer([worked(bench)], port=0) as server:
        with pytest.raises(urllib.error.HTTPError) as missing:
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/", timeout=10)
        with pytest.raises(urllib.error.HTTPError) as posted:
            urllib.request.urlopen(server.url, data=b"x", timeout=10)
        described = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        described.request("HEAD", "/metrics?x=1")
        answer = described.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
        assert int(answer.headers["Content-Length"]) > 1000
        described.close()
    assert (missing.value.code, posted.value.code) == (404, 501)


def test_a_closed_server_answers_nobody_and_its_port_is_free(bench):
    server = MetricsServer([], port=0)
    server.start()
    # A client that is connected and says nothing does not hold it up.
    with socket.create_connection(("127.0.0.1", server.port), timeout=10):
        server.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(server.url, timeout=10)
    MetricsServer([], port=server.port).close()


def test_calls_of_many_threads_are_all_counted():
    times = HandlerTimes()

    def observe() -> None:
        for _ in range(2000):
            times.observe(0.25)

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts, seconds = times.read()
    assert (counts[-1], seconds) == (8000, 2000.0)
    assert counts[BOUNDS.index(0.25)] == 8000
    assert counts[BOUNDS.index(0.1)] == 0


def test_what_was_cancelled_while_it_ran_is_counted(bench):
    queue = bench.queue(concurrency=1)
    path = queue.enqueue({})

    def handler(body: dict, context: Context) -> None:
        queue.cancel(path)
        with pytest.raises(Cancelled):
            context.check()
        context.check()

    worker = Worker(queue, handler, sweep=False)
    worker.run_until_empty()
    assert parsed(exposition([worker]))["s3queue_cancelled_total{orders}"] == 1
