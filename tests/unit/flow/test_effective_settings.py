"""Settings as they apply: published once, read by operators, never in the way of a message."""

from __future__ import annotations

import pytest

from s3queue import QueueSettings
from s3queue.errors import AccessDenied, Unavailable
from s3queue.flow.effective_settings import effective, shown
from s3queue.limits import Breaker

KEY = "orders/queue-settings.json"


def test_what_is_published_is_read_back(bench):
    queue = bench.queue(max_attempts=7, visibility_timeout=90, rate="100/min", breaker=Breaker(failures=5))
    assert queue.publish_settings("deployment")
    found = bench.queue().published_settings()
    assert (found.settings, found.by) == (queue.defined, "deployment")


def test_the_same_settings_are_written_once(bench):
    queue = bench.queue(max_attempts=7)
    queue.publish_settings()
    bench.store.take()
    assert not queue.publish_settings()
    assert bench.store.take() == {"get": 1}
    assert bench.queue(max_attempts=8).publish_settings()
    assert bench.store.take() == {"get": 1, "put": 1}
    assert bench.queue().published_settings().settings.max_attempts == 8


def test_a_changed_definition_replaces_an_old_one_also_with_fewer_settings(bench):
    bench.queue(max_attempts=7, history=False).publish_settings()
    bench.queue(max_attempts=7).publish_settings()
    assert bench.queue().published_settings().settings.history is True


@pytest.mark.parametrize("error", [Unavailable("no answer"), AccessDenied("s3:PutObject")])
def test_an_error_is_logged_and_stops_nobody(bench, error, caplog):
    def refuse(operation, key, perform):
        if key == KEY:
            raise error
        return perform()

    bench.around = refuse
    assert not bench.queue(max_attempts=7).publish_settings()
    assert "settings not published" in caplog.text


def test_two_that_publish_at_once_leave_one_of_both(bench):
    interrupted = []

    def meanwhile(operation, key, perform):
        if operation == "put" and key == KEY and not interrupted:
            interrupted.append(key)
            bench.queue(max_attempts=9).publish_settings()
        return perform()

    bench.around = meanwhile
    assert not bench.queue(max_attempts=7).publish_settings()
    assert bench.queue().published_settings().settings.max_attempts == 9


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"v":1}',
        b'{"v":1,"by":"me"}',
        b'{"v":1,"by":"worker","settings":{"max_attempts":-1}}',
        b"x" * 70000,
    ],
)
def test_garbage_is_as_if_nobody_had_published(bench, body):
    bench.put(KEY, body)
    assert bench.queue().published_settings() is None


def test_a_setting_of_a_newer_version_is_left_out(bench):
    bench.put(KEY, b'{"v":1,"by":"worker","settings":{"max_attempts":7,"telepathy":true}}')
    assert bench.queue().published_settings().settings == QueueSettings.of(max_attempts=7)


def test_an_override_that_does_not_suit_is_not_shown_as_if_it_counted():
    defined = QueueSettings.of(partitions=2, collect=10)
    found = {one.name: one for one in effective(defined, {"max_attempts": 1, "telepathy": 1, "within_seconds": 3})}
    assert (found["max_attempts"].value, found["max_attempts"].origin) == (3, "default")
    assert (found["within"].value, found["within"].origin) == (3.0, "queue.json")


def test_each_setting_names_its_origin():
    found = {
        one.name: one for one in effective(QueueSettings.of(max_attempts=7, rate="5/s"), {"rate": "9/s", "batch": 3})
    }
    assert [found[name].origin for name in ("max_attempts", "rate", "messages_per_run", "shards")] == [
        "definition",
        "queue.json",
        "queue.json",
        "default",
    ]
    assert found["visibility_timeout"].to_json() == {
        "name": "visibility_timeout",
        "value": 30.0,
        "shown": "30 s",
        "origin": "default",
    }


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("retry_base", QueueSettings.of(retry_base=0.5).retry_base, "0.5 s"),
        ("run_timeout", QueueSettings.of(run_timeout=5430).run_timeout, "1 h 30 min"),
        ("record_retention", QueueSettings().record_retention, "5 d"),
        ("max_message_size", 64 * 1024 * 1024, "64 MiB"),
        ("heavy_above", None, "none"),
        ("memory_mib", 512, "512 MiB"),
        ("executor_python_mib", 3072, "3,072 MiB"),
        ("pending_alarm", 10_000, "10,000"),
        ("history", False, "no"),
        ("engine", "lambda", "lambda"),
    ],
)
def test_units_that_people_read(name, value, said):
    assert shown(name, value) == said


@pytest.mark.parametrize(
    ("size", "said"), [(1536, "1.5 KiB"), (2 * 1024**3, "2 GiB"), (10**400, "GiB")], ids=["half", "whole", "forged"]
)
def test_a_size_is_shown_however_large_somebody_has_made_it(size, said):
    (found,) = [one for one in effective(QueueSettings(), {"max_message_size": size}) if one.name == "max_message_size"]

    assert found.shown.endswith(said)
