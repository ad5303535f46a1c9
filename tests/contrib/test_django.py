"""A real Django project with a real worker process, against SeaweedFS: with Django 6, or django-tasks before it."""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import django
import pytest
from django.conf import settings
from django.test import override_settings
from django.utils import timezone

from s3queue import DeadLetters
from s3queue.contrib.django.failures import raised
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.protocol.status import State

from .conftest import Started, until

pytestmark = pytest.mark.slow
#: A lease of a killed worker runs out after this, and S3's grain of two seconds.
VISIBILITY = 3
PACKAGE = "django.tasks" if django.VERSION >= (6,) else "django_tasks"
APPS = ["s3queue.contrib.django"] if django.VERSION >= (6,) else ["django_tasks", "s3queue.contrib.django"]
SETTINGS = f"""
import os
SECRET_KEY = "test"
USE_TZ = True
INSTALLED_APPS = {APPS}
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}}}
TASKS = {{
    "default": {{
        "BACKEND": "s3queue.contrib.django.backend.S3QueueBackend",
        "QUEUES": ["default", "emails"],
        "OPTIONS": {{
            "url": f"s3://{{os.environ['BUCKET']}}",
            "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
            "settings": {{"visibility_timeout_seconds": {VISIBILITY}}},
        }},
    }},
    "retrying": {{
        "BACKEND": "s3queue.contrib.django.backend.S3QueueBackend",
        "QUEUES": ["retried"],
        "OPTIONS": {{
            "url": f"s3://{{os.environ['BUCKET']}}",
            "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
            "retry": True,
            "settings": {{"retry_base_seconds": 0.1}},
        }},
    }},
    "other": {{"BACKEND": "{PACKAGE}.backends.dummy.DummyBackend"}},
}}
"""
TASKS = f"""
import json, time
from pathlib import Path

from django.db import connection
from {PACKAGE} import task

from s3queue import Retry

STARTS = Path(__file__).with_name("starts")


class OutOfStock(Exception):
    pass


def note(*what):
    with STARTS.open("a") as file:
        file.write(json.dumps([time.time(), *what]) + "\\n")


@task
def add(a, b=0):
    note("add", a, b)
    return {{"sum": a + b}}


@task
async def later(name):
    note("later", name)
    return f"hello {{name}}"


@task
def ask_the_database():
    with connection.cursor() as cursor:
        cursor.execute("select 40 + 2")
        return cursor.fetchone()[0]


@task
def sell():
    note("sell")
    raise OutOfStock("none left")


@task(takes_context=True)
def slow(context, seconds):
    note("slow", context.attempt)
    time.sleep(seconds)
    return context.attempt


@task(queue_name="retried", backend="retrying", takes_context=True)
def flaky(context):
    note("flaky", context.attempt)
    if context.attempt < 3:
        raise OutOfStock(f"attempt {{context.attempt}}")
    return context.attempt


@task
def patient():
    note("patient")
    if len(STARTS.read_text().splitlines()) < 2:
        raise Retry(after=0.1)


@task
def large():
    return "x" * 1_000_000
"""
MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop_settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""


@pytest.fixture
def shop(seaweedfs_endpoint: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The tasks of the project, as its web server imports them."""
    (tmp_path / "shop_settings.py").write_text(SETTINGS)
    (tmp_path / "shop_tasks.py").write_text(TASKS)
    (tmp_path / "manage.py").write_text(MANAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs_endpoint)
    monkeypatch.setenv("BUCKET", bucket)
    if not settings.configured:
        settings.configure(USE_TZ=True, INSTALLED_APPS=APPS)
        django.setup()
    with override_settings(TASKS=importlib.import_module("shop_settings").TASKS):
        yield importlib.import_module("shop_tasks")
    for name in ("shop_tasks", "shop_settings"):
        sys.modules.pop(name)


@pytest.fixture
def worker(shop: Any, start: Callable[..., Started]) -> Callable[..., Started]:
    def run(*args: str) -> Started:
        one = start("manage.py", "s3queue_worker", "--poll-interval", "0.2", *args)
        until(lambda: one.says("working on"))
        return one

    return run


def starts(shop: Any) -> list[list[Any]]:
    return [json.loads(line) for line in shop.STARTS.read_text().splitlines()] if shop.STARTS.exists() else []


def finished(result: Any) -> Any:
    def look() -> bool:
        result.refresh()
        return bool(result.is_finished)

    until(look)
    return result


def test_tasks_run_and_their_results_can_be_read_by_id(shop, worker):
    sent = shop.add.enqueue(1, b=2)
    assert sent.status == "READY"
    assert sent.attempts == 0
    with pytest.raises(ValueError, match="not finished"):
        _ = sent.return_value
    worker()
    done = finished(shop.add.get_result(sent.id))
    assert (done.status, done.return_value, done.args, done.kwargs) == ("SUCCESSFUL", {"sum": 3}, [1], {"b": 2})
    assert done.attempts == 1
    second = timedelta(seconds=1)  # of S3's dates
    assert done.enqueued_at <= done.started_at + second <= done.finished_at + 3 * second
    assert finished(shop.ask_the_database.enqueue()).return_value == 42

    async def from_a_view() -> Any:
        result = await shop.later.aenqueue("ada")
        while not result.is_finished:
            await asyncio.sleep(0.1)
            await result.arefresh()
        return result.return_value

    assert asyncio.run(from_a_view()) == "hello ada"


def test_what_a_task_raises_is_final_and_can_be_read(shop, worker, queue):
    worker()
    failed, large = shop.sell.enqueue(), shop.large.enqueue()
    assert finished(failed).status == "FAILED"
    (error,) = failed.errors
    assert error.exception_class is shop.OutOfStock
    assert "none left" in error.traceback
    assert "raise OutOfStock" in error.traceback
    assert failed.attempts == 1
    assert [what for _, what in starts(shop)] == ["sell"]
    # It is a dead letter, for operators.
    assert "cannot be kept" in finished(large).errors[0].traceback
    assert sorted(letter.error_type for letter in DeadLetters(queue("default")).list()) == ["OutOfStock", "ValueError"]
    asked = shop.patient.enqueue()
    assert finished(asked).status == "SUCCESSFUL"


def test_a_task_can_be_read_in_every_state_also_while_it_is_buried(shop, queue, monkeypatch):
    assert importlib.import_module("s3queue.contrib.django.backend")._STATUS.keys() == set(get_args(State))
    task, tasks = shop.sell.enqueue(), queue("default")
    claim = tasks.claim(task.id.removeprefix("default/"))
    # The worker dies after it has announced the burial; a sweeper continues it.
    monkeypatch.setattr(LeaseProtocol, "_record", killed)
    with pytest.raises(KeyboardInterrupt):
        tasks.fail(claim, raised(shop.OutOfStock("none left"), retries=False))
    task.refresh()
    assert (task.status, task.is_finished, task.finished_at) == ("RUNNING", False, None)
    assert [error.exception_class for error in task.errors] == [shop.OutOfStock]


def killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_exceptions_are_retried_if_that_is_wanted(shop, worker):
    worker("--backend", "retrying")
    done = finished(shop.flaky.enqueue())
    assert (done.status, done.return_value, done.attempts) == ("SUCCESSFUL", 3, 3)
    assert [error.exception_class for error in done.errors] == [shop.OutOfStock] * 2


def test_a_deferred_task_runs_when_it_is_due_and_urgent_ones_first(shop, worker):
    # Longer than a worker takes to start on a busy machine.
    due = timezone.now() + timedelta(seconds=30)
    deferred = shop.add.using(run_after=due).enqueue(1)
    for priority in (-100, 0, 100, 7):
        shop.add.using(priority=priority).enqueue(priority)
    assert deferred.id.startswith("default/delayed/")
    worker("--concurrency", "1")
    assert finished(deferred).return_value == {"sum": 1}
    assert [line[2] for line in starts(shop)] == [100, 7, 0, -100, 1]
    assert starts(shop)[-1][0] >= due.timestamp()


def test_a_task_of_a_killed_worker_runs_again_elsewhere(shop, worker):
    first = worker()
    task = shop.slow.enqueue(4)
    until(lambda: starts(shop))
    task.refresh()
    assert (task.status, task.attempts) == ("RUNNING", 1)
    first.kill()
    worker()
    assert finished(task).return_value == 2
    assert [line[2] for line in starts(shop)] == [1, 2]
    (error,) = task.errors
    assert error.exception_class.__name__ == "AttemptFailed"
    assert "LeaseExpired" in error.traceback


def test_a_worker_that_is_told_to_stop_finishes_its_task(shop, worker, keys):
    one = worker("--concurrency", "1", "--queue-name", "default")
    task = shop.slow.enqueue(3)
    until(lambda: starts(shop))
    waiting = shop.add.enqueue(1)
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(60) == 0
    task.refresh()
    assert task.return_value == 1
    waiting.refresh()
    assert waiting.status == "READY"
    assert keys("default/workers/") == keys("default/leases/") == []
    worker("--until-empty").process.wait(60)
    waiting.refresh()
    assert waiting.return_value == {"sum": 1}


def test_what_is_no_task_becomes_a_dead_letter_and_names_nothing_that_runs(shop, worker, queue):
    default = queue("default")
    task = {"args": ["hello"], "kwargs": {}, "priority": 0, "enqueued_at": "2026-11-17T12:00:00", "run_after": None}
    for body in ({"to": "ada"}, task | {"task": "os.system"}, task | {"task": "shop_tasks.no"}):
        default.enqueue(body)
    worker("--until-empty").process.wait(60)
    reasons = sorted(letter.error for letter in DeadLetters(default).list())
    assert reasons[0].startswith("'os.system' is not a task")
    assert reasons[1].startswith("no task 'shop_tasks.no' in this project")
    assert reasons[2].startswith("this is not a Django task")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--queue-name", "nonsense"], "no queue 'nonsense' in TASKS['default']; its QUEUES are default, emails"),
        (["--backend", "other"], "TASKS['other'] is not of s3queue, but DummyBackend"),
        (["--concurrency", "0"], "concurrency must be at least 1"),
        (["--poll-interval", "nan"], "poll_interval must be a number of seconds"),
        (["--backend", "nonsense"], "nonsense"),
    ],
)
def test_a_wrong_command_is_said_without_a_traceback(shop, start, args, said):
    one = start("manage.py", "s3queue_worker", *args)
    assert one.process.wait(60) == 1
    assert said in one.log.read_text()


def test_the_worker_can_be_asked_what_it_does(shop, start):
    one = start("manage.py", "s3queue_worker", "--help")
    assert one.process.wait(60) == 0
    assert "Example: manage.py s3queue_worker" in " ".join(one.log.read_text().split())
