"""A real Celery worker with a pool of processes, against SeaweedFS: what Celery promises holds over a bucket."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from kombu.exceptions import OperationalError

from s3queue import DeadLetters, InvalidRequest
from s3queue.contrib.celery import revoke

from .conftest import Started, until

pytestmark = pytest.mark.slow
#: A lease of a killed worker runs out after this, and S3's grain of two seconds.
VISIBILITY = 3
SHOP = f"""
import json, os, time
from pathlib import Path

from celery import Celery
from celery.exceptions import Reject

import s3queue.contrib.celery

URL = f"s3queue://{{os.environ['BUCKET']}}?endpoint_url={{os.environ['AWS_ENDPOINT_URL']}}"
app = Celery("shop", broker=URL, backend=URL)
app.conf.update(
    broker_transport_options=dict(
        visibility_timeout={VISIBILITY}, polling_interval=0.2, max_polling_interval=0.5
    ),
    worker_prefetch_multiplier=2,
    broker_connection_retry_on_startup=True,
    worker_redirect_stdouts=False,
)
STARTS = Path(__file__).with_name("starts")


def note(request, *args):
    with STARTS.open("a") as file:
        file.write(json.dumps([request.id, time.time(), request.delivery_info.get("redelivered"), *args]) + "\\n")


@app.task(shared=False, bind=True)
def add(self, a, b):
    note(self.request, a, b)
    return a + b


@app.task(shared=False, bind=True)
def total(self, numbers):
    note(self.request, numbers)
    return sum(numbers)


@app.task(shared=False, bind=True)
def fail(self):
    note(self.request)
    raise ValueError("no luck")


@app.task(shared=False, bind=True, max_retries=2)
def flaky(self):
    note(self.request, self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=self.request.retries)
    return self.request.retries


@app.task(shared=False, bind=True, acks_late=True)
def slow(self, seconds):
    note(self.request)
    time.sleep(seconds)
    return "slept"


@app.task(shared=False, bind=True)
def slow_and_early(self, seconds):
    note(self.request)
    time.sleep(seconds)


@app.task(shared=False, bind=True, rate_limit="1/m")
def limited(self):
    note(self.request)


@app.task(shared=False, bind=True, acks_late=True)
def refuse(self):
    note(self.request)
    raise Reject("not this one", requeue=False)
"""


@pytest.fixture
def shop(seaweedfs_endpoint: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The project as this process imports it: a producer."""
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs_endpoint)
    monkeypatch.setenv("BUCKET", bucket)
    spec = importlib.util.spec_from_file_location("shop", tmp_path / "shop.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def worker(shop: Any, start: Callable[..., Started]) -> Callable[..., Started]:
    """Starts `celery worker`, and waits until it is ready."""

    def run(*args: str, wait: bool = True) -> Started:
        one = start(
            "-m", "celery", "-A", "shop", "worker", "--loglevel=INFO", "--hostname", f"{time.time()}@here", *args
        )
        if wait:
            until(lambda: one.says(" ready."))
        return one

    return run


def starts(shop: Any, result: Any = None) -> list[list[Any]]:
    """What ran: id, when, whether it was delivered before, arguments."""
    if not shop.STARTS.exists():
        return []
    lines = [json.loads(line) for line in shop.STARTS.read_text().splitlines()]
    return [line for line in lines if result is None or line[0] == result.id]


def test_results_failures_and_retries_come_back(shop, worker, keys):
    worker("-c", "2")
    sent = [shop.add.delay(n, n) for n in range(10)]
    assert [one.get(timeout=60) for one in sent] == [2 * n for n in range(10)]
    failed = shop.fail.delay()
    with pytest.raises(ValueError, match="no luck"):
        failed.get(timeout=60)
    assert failed.state == "FAILURE"
    flaky = shop.flaky.delay()
    assert flaky.get(timeout=60) == 2
    assert [line[3] for line in starts(shop, flaky)] == [0, 1, 2]
    # Acknowledged, recorded and deleted: nothing is left of them but records and results.
    until(lambda: not keys("celery/messages/") + keys("celery/delayed/") + keys("celery/leases/"))
    assert len(keys("celery/records/")) == 14
    assert f"celery/results/task-{flaky.id}" in keys("celery/results/")


def test_a_task_with_an_eta_waits_in_the_bucket_and_not_in_a_worker(shop, worker, keys):
    worker("-c", "1")
    due = datetime.now(UTC) + timedelta(seconds=6)
    later, soon = shop.add.apply_async((1, 2), eta=due), shop.add.delay(3, 4)
    assert soon.get(timeout=60) == 7
    # The worker was there all the time, and has not taken it.
    (waiting,) = keys("celery/delayed/")
    assert waiting.endswith(later.id)
    assert keys("celery/leases/delayed/") == []
    assert later.get(timeout=60) == 3
    ((_, ran_at, *_),) = starts(shop, later)
    assert ran_at >= due.timestamp()


def test_urgent_tasks_run_first(shop, worker):
    sent = {priority: shop.add.apply_async((priority, 0), priority=priority) for priority in (0, 5, 255, 9)}
    worker("-c", "1", "--prefetch-multiplier", "1")
    assert [sent[priority].get(timeout=60) for priority in sent] == [0, 5, 255, 9]
    assert [line[3] for line in starts(shop)] == [255, 9, 5, 0]


def test_a_task_of_a_killed_worker_runs_again_elsewhere(shop, worker, queue):
    first = worker("-c", "1")
    task = shop.slow.delay(5)
    until(lambda: starts(shop, task))
    first.kill()
    worker("-c", "1")
    assert task.get(timeout=60) == "slept"
    assert [line[2] for line in starts(shop, task)] == [False, True]
    (record,) = until(lambda: queue("celery").list("completed").messages)
    assert record.attempt == 2


def test_a_task_that_was_acknowledged_before_it_ran_is_not_run_again(shop, worker, keys):
    first = worker("-c", "1")
    task = shop.slow_and_early.delay(60)
    until(lambda: starts(shop, task) and not keys("celery/messages/"))
    first.kill()
    worker("-c", "1")
    # Longer than a lease could have lasted; what is sent later runs meanwhile.
    end = time.monotonic() + VISIBILITY + 4
    while time.monotonic() < end:
        assert shop.add.delay(1, 1).get(timeout=60) == 2
    assert len(starts(shop, task)) == 1


def test_a_task_may_take_much_longer_than_the_visibility_timeout(shop, worker):
    worker("-c", "1")
    task = shop.slow.delay(3 * VISIBILITY)
    until(lambda: starts(shop, task))
    worker("-c", "1")
    assert task.get(timeout=60) == "slept"
    assert len(starts(shop, task)) == 1


def test_groups_chains_and_chords_over_two_workers(shop, worker):
    worker("-c", "2")
    worker("-c", "2", "--pool", "threads")
    assert group(shop.add.s(n, 1) for n in range(5))().get(timeout=60) == [1, 2, 3, 4, 5]
    assert chain(shop.add.s(1, 2), shop.add.s(3), shop.add.s(4))().get(timeout=60) == 10
    chords = [chord((shop.add.s(n, n) for n in range(8)), shop.total.s())() for _ in range(5)]
    assert [one.get(timeout=60) for one in chords] == [56] * 5
    # Several parts of one chord may end at the same moment, in both workers; its body is one message.
    assert [len(starts(shop, one)) for one in chords] == [1] * 5
    assert chord([shop.add.s(1, 1), shop.add.s(2, 2)], shop.total.s() | shop.add.s(10))().get(timeout=60) == 16
    broken = chord([shop.add.s(1, 1), shop.fail.s()], shop.total.s())()
    with pytest.raises(Exception, match="no luck"):
        broken.get(timeout=60)
    assert starts(shop, broken) == []


def test_a_revoked_task_never_runs_and_celerys_own_revoke_says_what_to_do(shop, worker, keys):
    task = shop.add.apply_async((1, 2), countdown=3)
    waiting = shop.add.delay(3, 4)
    assert revoke(shop.app, task.id) == revoke(shop.app, waiting.id, queue="celery") == "revoked"
    assert revoke(shop.app, task.id) == revoke(shop.app, "no-such-task") == "not found"
    worker("-c", "1")
    running = shop.slow.delay(4)
    until(lambda: starts(shop, running))
    assert revoke(shop.app, running.id) == "running"
    until(lambda: not keys("celery/messages/"))
    time.sleep(5)
    assert task.state == waiting.state == "REVOKED"
    assert starts(shop, task) == starts(shop, waiting) == []
    with pytest.raises((InvalidRequest, OperationalError), match=r"s3queue\.contrib\.celery\.revoke"):
        running.revoke()


def test_a_worker_that_is_told_to_stop_finishes_what_runs_and_gives_the_rest_back(shop, worker, keys):
    one = worker("-c", "2")
    task = shop.slow.delay(4)
    until(lambda: starts(shop, task))
    limited = [shop.limited.delay() for _ in range(3)]
    # Their rate lets a worker start one a minute; the others are taken in advance, and wait in its memory.
    until(lambda: len(starts(shop)) == 2 and len(keys("celery/messages/")) == len(keys("celery/leases/messages/")) == 3)
    assert one.terminate() == 0
    assert task.get(timeout=1) == "slept"
    assert keys("celery/workers/") == keys("celery/leases/") == []
    assert len(keys("celery/messages/")) == 2
    worker("-c", "1")
    until(lambda: len(starts(shop)) == 3)
    assert sorted(len(starts(shop, one)) for one in limited) == [0, 1, 1]
    assert len(starts(shop, task)) == 1


def test_what_is_rejected_or_is_no_task_becomes_a_dead_letter(shop, worker, queue):
    celery = queue("celery")
    celery.enqueue({"to": "ada@example.com"}, name="stranger.json")
    celery.enqueue_many([{"n": 1}])
    refused = shop.refuse.delay()
    worker("-c", "1")
    assert shop.add.delay(1, 2).get(timeout=60) == 3
    until(lambda: len(list(DeadLetters(celery).list())) == 3)
    errors = sorted(letter.error_type for letter in DeadLetters(celery).list())
    assert errors == ["NotCelery", "NotCelery", "Reject"]
    assert len(starts(shop, refused)) == 1


def test_no_forged_message_ends_a_worker(shop, worker, queue):
    celery = queue("celery")
    properties = {"delivery_info": {}, "delivery_tag": "1", "body_encoding": "utf-8"}
    plain = {"content-type": "application/json", "content-encoding": "utf-8", "properties": properties}
    # Celery looks for a task by a list, for an id that is missing, and for arguments in a number.
    forged = [{"task": ["x"], "id": "1"}, {"task": shop.add.name}, {"task": shop.add.name, "id": "2"}]
    paths = [
        celery.enqueue(plain | {"headers": headers, "body": body})
        for headers, body in zip(forged, ["[[], {}, {}]", "[[], {}, {}]", "5"], strict=True)
    ]
    one = worker("-c", "1")
    until(lambda: all(celery.status(path).attempts for path in paths))
    assert shop.add.delay(1, 2).get(timeout=60) == 3
    assert one.process.poll() is None
    assert one.log.read_text().count("counted as a failed attempt") >= 3


@pytest.mark.parametrize("where", ["missing-bucket", "names"])
def test_what_cannot_work_is_said_at_the_start(shop, worker, monkeypatch, where):
    if where == "missing-bucket":
        monkeypatch.setitem(os.environ, "BUCKET", "no-such-bucket")
        (shop.STARTS.parent / "shop.py").write_text(SHOP.replace("os.environ['BUCKET']", "'no-such-bucket'"))
        args, said = [], "no-such-bucket"
    else:
        args, said = ["-Q", "Emails.High"], "queue name 'Emails.High' is not valid"
    one = worker("-c", "1", *args, wait=False)
    assert one.process.wait(60) != 0
    assert said in one.log.read_text()
