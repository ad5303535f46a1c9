"""Django's tasks on a bucket in memory: what is stored, what is asked, and what is refused."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from s3queue import Queue, Reject, Retry
from s3queue.connect import lend_memory
from s3queue.contrib.django.backend import S3QueueBackend
from s3queue.contrib.django.failures import raised, task_error
from s3queue.contrib.django.payload import queue_priority
from s3queue.contrib.django.running import handler_of
from s3queue.contrib.django.tasks import (
    InvalidTaskError,
    Task,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from s3queue.documents.record import Failure
from support.workbench import Workbench

if not settings.configured:
    own = [] if django.VERSION >= (6,) else ["django_tasks"]
    settings.configure(USE_TZ=True, INSTALLED_APPS=[*own, "s3queue.contrib.django"])
    django.setup()


def add(a: int, b: int = 0) -> int:
    return a + b


def fail() -> None:
    raise LookupError("nowhere")


def leave() -> None:
    sys.exit(3)


async def stop() -> None:
    raise asyncio.CancelledError("stopped")


def again() -> None:
    raise Retry("later", after=5)


@pytest.fixture
def backend(bench: Workbench) -> Iterator[S3QueueBackend]:
    options = {"url": "memory://bench", "settings": {"retry_jitter": False}}
    made = {"BACKEND": "s3queue.contrib.django.backend.S3QueueBackend", "QUEUES": ["default"], "OPTIONS": options}
    with lend_memory(bench.memory), override_settings(TASKS={"default": made}):
        yield task_backends["default"]


@pytest.fixture
def shop(backend: S3QueueBackend, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with tasks, under the name that their functions have."""
    module = types.ModuleType(add.__module__)
    for function in (add, fail, again, leave, stop):
        setattr(module, function.__name__, Task(func=function))
    monkeypatch.setitem(sys.modules, add.__module__, module)
    return module


@pytest.fixture
def work(bench: Workbench, backend: S3QueueBackend) -> Callable[[], None]:
    """Run what can run, once, as a worker does, without its threads."""

    def run() -> None:
        queue = bench.queue("default", **backend.queue("default").settings.to_json() | {"breaker": "off"})
        processor = bench.processor(queue, handler_of(backend, "default"))
        for state in ("pending", "delayed", "waiting"):
            for found in queue.list(state).messages:
                processor.run(found.path, read_first=True)

    return run


def test_a_task_is_one_put_and_its_id_is_its_place(bench, backend, shop):
    asked: list[tuple[str, str]] = []
    bench.around = lambda operation, key, perform: (asked.append((operation, key)), perform())[1]
    sent = shop.add.enqueue(1, b=2)
    assert asked == [("put", sent.id)]
    assert sent.id.startswith("default/messages/p128/")
    stored = json.loads(bench.read(sent.id))
    assert (stored["task"], stored["args"], stored["kwargs"]) == (f"{add.__module__}.add", [1], {"b": 2})


def test_every_priority_is_one_of_ours_in_the_same_order():
    ours = [queue_priority(priority) for priority in range(-100, 101)]
    assert ours == sorted(set(ours))
    assert (ours[0], queue_priority(0), ours[-1]) == (1, 128, 255)


def test_signals_tell_of_a_task(shop, work):
    told: list[tuple[str, str]] = []
    receivers = []
    for name, signal in {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}.items():

        def receive(sender: Any, task_result: Any, name: str = name, **kwargs: Any) -> None:
            told.append((name, task_result.status))

        receivers.append((signal, receive))
        signal.connect(receive)
    try:
        shop.add.enqueue(1)
        work()
    finally:
        for signal, receive in receivers:
            signal.disconnect(receive)
    assert told == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]


def test_what_a_task_returned_or_raised_is_in_its_result(shop, work):
    added, failed, asked = shop.add.enqueue(1, b=2), shop.fail.enqueue(), shop.again.enqueue()
    work()
    for result in (added, failed, asked):
        result.refresh()
    assert (added.return_value, added.attempts, added.errors) == (3, 1, [])
    assert (failed.status, failed.errors[0].exception_class) == ("FAILED", LookupError)
    assert failed.errors[0].traceback.endswith("builtins.LookupError: nowhere\n")
    # It asked for that itself, so it is tried again.
    assert (asked.status, asked.attempts) == ("READY", 1)
    with pytest.raises(Exception, match="Task does not match"):
        shop.fail.get_result(added.id)


@pytest.mark.parametrize(("name", "kind"), [("leave", SystemExit), ("stop", asyncio.CancelledError)])
def test_what_is_no_exception_but_fails_an_attempt_is_final_as_well_and_told(shop, work, name, kind):
    told: list[Any] = []

    def receive(sender: Any, task_result: Any, **kwargs: Any) -> None:
        told.append((task_result.status, [error.exception_class for error in task_result.errors]))

    task_finished.connect(receive)
    try:
        sent = getattr(shop, name).enqueue()
        work()
    finally:
        task_finished.disconnect(receive)
    assert told == [("FAILED", [kind])]
    sent.refresh()
    assert (sent.status, sent.attempts) == ("FAILED", 1)
    assert [error.exception_class for error in sent.errors] == [kind]


@pytest.mark.parametrize("result_id", ["", "default", "default/messages/none", "nonsense", "../x", "Default/messages"])
def test_a_result_that_does_not_exist_is_said_so(shop, result_id):
    with pytest.raises(TaskResultDoesNotExist):
        shop.add.get_result(result_id)


def test_arguments_that_are_no_json_are_refused_before_anything_is_written(bench, shop):
    for refused in (object(), float("nan"), {1, 2}):
        with pytest.raises((TypeError, InvalidTaskError)):
            shop.add.enqueue(refused)
    assert bench.keys() == []


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({}, r"needs OPTIONS = \{'url': 's3://bucket'\}"),
        ({"OPTIONS": {"url": "s3://b", "prefixx": 1}}, "unknown option 'prefixx'; known are url"),
        ({"OPTIONS": {"url": "s3://b", "settings": {"max_attempts": 0}}}, "max_attempts must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(params, said):
    with pytest.raises(ImproperlyConfigured, match=said):
        S3QueueBackend("default", params)


def test_a_url_that_names_a_queue_and_a_queue_that_cannot_be_are_refused():
    with pytest.raises(ImproperlyConfigured, match="names the queue 'emails'"):
        S3QueueBackend("default", {"OPTIONS": {"url": "s3://bucket/emails", "region": "eu-central-1"}}).queue("default")
    (problem,) = S3QueueBackend("default", {"QUEUES": ["High Priority"], "OPTIONS": {"url": "s3://bucket"}}).check()
    assert "queue name 'High Priority' is not valid" in problem.msg


def test_what_no_task_raised_has_a_class_as_well():
    error = task_error(Failure("LeaseExpired", "the worker w stopped"))
    assert error.exception_class.__name__ == "AttemptFailed"
    assert "LeaseExpired: the worker w stopped" in error.traceback
    assert task_error(Failure("Reject", "no")).exception_class is Reject
    assert not isinstance(raised(LookupError("x"), retries=True), Reject)


def test_a_completed_task_whose_arguments_were_not_kept_says_so(bench, shop, backend):
    sent = shop.add.enqueue(1)
    queue = Queue(store=bench.store, name="default", clock=bench.clock)
    (claim,) = queue.claim_next()
    queue.complete(claim, 1)
    with pytest.raises(TaskResultDoesNotExist, match="keep_payload"):
        shop.add.get_result(sent.id)


def test_a_task_costs_what_docs_django_says(bench, shop):
    asked: list[str] = []

    def count(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        asked.append(operation)
        return perform()

    sent = shop.add.enqueue(1)
    (path,) = bench.keys("default/messages/")
    bench.around = count
    queue = bench.queue("default", keep_payload=True)
    claim = queue.claim(path.removeprefix("default/"))
    assert claim
    queue.complete(claim, 2)
    assert Counter(asked) == {"put": 2, "get": 1, "copy": 1, "delete": 2}
    asked.clear()
    sent.refresh()
    assert sent.return_value == 2
    assert Counter(asked) == {"head": 3, "get": 3}


@pytest.mark.parametrize(("name", "state"), [("add", "completed"), ("fail", "dead")])
def test_a_receiver_that_fails_lets_no_task_run_again(bench, backend, shop, work, name, state):
    def receive(**kwargs: Any) -> None:
        raise OSError("the log is full")

    task_finished.connect(receive)
    try:
        sent = getattr(shop, name).enqueue(*([1] if name == "add" else []))
        work()
    finally:
        task_finished.disconnect(receive)
    assert backend.queue("default").status(sent.id.partition("/")[2]).state == state


@pytest.mark.parametrize(
    "changed", [{"task": "..x"}, {"task": ".x"}, {"task": "leaving.now"}, {"priority": 1000}, {"task": "json.dumps"}]
)
def test_a_forged_task_is_dead_at_once_and_has_no_result(bench, backend, shop, work, monkeypatch, tmp_path, changed):
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    sent = shop.add.enqueue(1)
    stored = json.loads(bench.read(sent.id))
    path = backend.queue("default").enqueue(json.dumps(stored | changed).encode(), name="forged")
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(f"default/{path}")
    work()
    assert backend.queue("default").status(path).state == "dead"
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(f"default/{path}")


def test_an_id_opens_no_other_queue(bench, backend, shop):
    sent = shop.add.enqueue(1)
    bench.memory.put(sent.id.replace("default/", "secrets/", 1), bench.read(sent.id))
    bench.around = lambda operation, key, perform: pytest.fail(f"{operation} {key}")
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(sent.id.replace("default/", "secrets/", 1))
    assert "secrets" not in backend._queues
