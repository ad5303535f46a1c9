"""Settings: what people write is understood or refused by name, and the environment carries it."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from s3queue.deployment import Deployment
from s3queue.documents.run_documents import Manifest
from s3queue.encoding import EARLIEST
from s3queue.errors import CorruptState, InvalidRequest
from s3queue.retry import RetryPolicy
from s3queue.run_memory import RunMemory
from s3queue.settings import MIB, MOST_PER_RUN, QueueSettings, parse_size
from s3queue.stores.memory import MemoryStore

SECOND = timedelta(seconds=1)


@given(some.integers(0, 10**30))
def test_a_number_of_bytes_is_itself(size):
    assert parse_size(size) == parse_size(str(size)) == parse_size(f" {size} B ") == size


@given(some.integers(0, 10**15), some.sampled_from([("k", 1), ("M", 2), ("g", 3)]), some.booleans())
def test_a_size_with_a_unit_is_exact(number, unit, binary):
    letter, power = unit

    assert parse_size(f"{number} {letter}{'i' if binary else ''}B") == number * (1024 if binary else 1000) ** power


def test_a_size_may_have_a_fraction():
    assert parse_size("1.5 KiB") == 1536
    assert parse_size("0.1 GB") == 100_000_000
    assert parse_size(f"{10**30}.000000001 GB") == 10**39 + 1
    assert parse_size("0.9999 b") == 0


@pytest.mark.parametrize(
    "size",
    ["9" * 5000, "", "MiB", "5 ib", "5 TB", "1.2.3", ".", "1.", "-1", "1e3", "5 MiB/s", "\u0665", True, None, 1.5, [1]],
)
def test_what_is_no_size_is_refused(size):
    with pytest.raises(InvalidRequest, match="64 MiB"):
        parse_size(size)


def test_the_defaults_are_the_promised_ones():
    settings = QueueSettings()

    assert settings.visibility_timeout == 30 * SECOND
    assert settings.retry == RetryPolicy(base=SECOND, cap=300 * SECOND, max_attempts=3, jitter=True)
    assert (settings.max_message_size, settings.concurrency) == (64 * MIB, 3)
    assert settings.record_retention == timedelta(days=5)


def test_people_write_seconds_and_sizes():
    settings = QueueSettings.of(visibility_timeout=60, retry_base="0.5", heavy_above="64 MiB", max_attempts="5")

    assert (settings.visibility_timeout, settings.retry_base) == (60 * SECOND, SECOND / 2)
    assert (settings.heavy_above, settings.max_attempts) == (64 * MIB, 5)
    assert QueueSettings.of(visibility_timeout_seconds=7).visibility_timeout == 7 * SECOND


def test_a_setting_with_its_old_name_is_still_read():
    assert QueueSettings.of(batch=7).messages_per_run == 7
    assert QueueSettings().with_overrides({"batch": 7}).messages_per_run == 7
    assert QueueSettings.of(batch=7, messages_per_run=8).messages_per_run == 8
    assert QueueSettings.of(messages_per_run=8, batch=7).messages_per_run == 8
    assert "batch" not in QueueSettings.of(batch=7).to_json()
    with pytest.raises(InvalidRequest, match="messages_per_run"):
        QueueSettings.of(batch=0)


settings = some.builds(
    QueueSettings,
    visibility_timeout=some.timedeltas(SECOND, timedelta(days=7)),
    max_attempts=some.integers(1, 10**6),
    retry_base=some.timedeltas(timedelta(), 300 * SECOND),
    retry_jitter=some.booleans(),
    max_message_size=some.integers(1, 2**50),
    max_depth=some.none() | some.integers(1, 10**9),
    shards=some.integers(0, 256),
    history=some.booleans(),
    events=some.sampled_from(["off", "failures", "all"]),
    engine=some.sampled_from(["lambda", "spark"]),
    heavy_above=some.none() | some.integers(0, 2**50),
    paused=some.booleans(),
    dead_letters=some.booleans(),
)


@given(settings)
def test_settings_are_read_back_from_json(drawn):
    assert QueueSettings().with_overrides(drawn.to_json()) == drawn


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("colour", "red"),
        ("batch_seconds", 5),
        ("paused_seconds", 1),
        ("visibility_timeout", 0),
        ("visibility_timeout", -5),
        ("visibility_timeout", "soon"),
        ("visibility_timeout", None),
        ("visibility_timeout", float("nan")),
        ("visibility_timeout", 1e300),
        ("visibility_timeout", True),
        ("max_attempts", 0),
        ("max_attempts", 1.5),
        ("max_attempts", True),
        ("max_attempts", None),
        ("max_attempts", float("inf")),
        ("max_depth", 0),
        ("messages_per_run", MOST_PER_RUN + 1),
        ("shards", 257),
        ("shards", -1),
        ("paused", "yes"),
        ("paused", 1),
        ("dead_letters", "no"),
        ("events", "some"),
        ("engine", "flink"),
        ("max_message_size", "5 ib"),
        ("max_message_size", 0),
        ("heavy_above", "lots"),
        ("retry_base", 301),
        ("retry_base", -1),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(option, value):
    with pytest.raises(InvalidRequest):
        QueueSettings.of(**{option: value})


def test_a_manifest_can_name_all_that_a_run_may_hold():
    """Twice what it claims at one time: the last ones may run while it claims the next; and a thousand that it has
    lost. Names with the most bytes.
    """
    paths = tuple(f"messages/{number:04}".ljust(1000, '"') for number in range(2 * MOST_PER_RUN))
    assert QueueSettings.of(messages_per_run=MOST_PER_RUN).messages_per_run == MOST_PER_RUN
    manifest = Manifest(run="run-x", slot=0, state="running", opened_at=EARLIEST, paths=paths, lost=paths[:1000])
    store = MemoryStore("manifests")
    store.put("exports/runs/run-x.json", manifest.to_bytes())

    found = store.open("exports/runs/run-x.json")

    assert found is not None
    assert Manifest.read(found) == manifest


def test_a_deployment_is_read_back_from_the_environment():
    deployment = Deployment(
        bucket="jobs",
        queue="emails",
        workers={"emails": "stack-emails", "orders": "stack-orders"},
        spark_application="app",
        spark_role="role",
        event_bus="bus",
    )

    environment = deployment.to_env()

    assert Deployment.from_env(environment) == deployment
    assert all(name.startswith("S3QUEUE_") and isinstance(value, str) for name, value in environment.items())
    assert Deployment.from_env({"S3QUEUE_BUCKET": "jobs", "HOME": "/"}) == Deployment(bucket="jobs", workers={})


@pytest.mark.parametrize("workers", ["[", "[1]", '["a"]', "7", '{"Not A Queue":"f"}', '"text"'])
def test_an_environment_that_makes_no_sense_is_said_to_be_that(workers):
    with pytest.raises(CorruptState, match="S3QUEUE_"):
        Deployment.from_env({"S3QUEUE_BUCKET": "jobs", "S3QUEUE_WORKERS": workers})


def test_a_deployment_without_a_bucket_is_none():
    with pytest.raises(CorruptState, match="bucket"):
        Deployment.from_env({})


def test_a_hundred_workers_fit_into_the_variables_of_a_function():
    workers = {f"customer-{number:03}": f"s3queue-customer-{number:03}" for number in range(100)}
    deployment = Deployment(bucket="jobs", workers=workers | {"legacy": "another-name"})
    written = deployment.to_env()
    assert len(written["S3QUEUE_WORKERS"]) < 1700
    assert Deployment.from_env(written) == deployment


def test_workers_that_were_written_name_by_name_are_still_read():
    written = {"S3QUEUE_BUCKET": "jobs", "S3QUEUE_WORKERS": '{"emails": "s3queue-emails", "a": "b"}'}
    assert Deployment.from_env(written).workers == {"emails": "s3queue-emails", "a": "b"}


@pytest.mark.parametrize("workers", ['{"emails": 5}', '{"s3queue-": [5]}', '{"s3queue-": ["E mails"]}', "[]"])
def test_workers_that_make_no_sense_are_corrupt(workers):
    with pytest.raises(CorruptState, match="S3QUEUE_"):
        Deployment.from_env({"S3QUEUE_BUCKET": "jobs", "S3QUEUE_WORKERS": workers})


def test_work_for_pull_workers_alone_cannot_go_to_spark():
    assert QueueSettings.of(engine="pull").uses_spark is False
    with pytest.raises(InvalidRequest, match="heavy_above"):
        QueueSettings.of(engine="pull", heavy_above=1000)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"executor_memory_mib": 100}, "executor_memory_mib must be a whole number of at least 512"),
        ({"driver_python_mib": 0}, "driver_python_mib must be a whole number of at least 384"),
        ({"executor_memory_mib": 9000, "executor_python_mib": 9000}, "at most 16384 together"),
    ],
)
def test_memory_that_no_run_can_have_is_refused_by_name(settings, said):
    with pytest.raises(InvalidRequest, match=said):
        QueueSettings.of(engine="spark", **settings)


def test_the_usual_memory_of_a_run_is_enough_for_the_largest_message_that_a_queue_takes_unless_told_otherwise():
    assert QueueSettings().run_memory.largest_in_batch >= QueueSettings().max_message_size
    large = QueueSettings.of(engine="spark", executor_memory_mib=8192, executor_python_mib=4096)
    assert large.run_memory.largest_in_batch == 256 * 1024 * 1024


def test_a_payload_that_is_too_large_for_a_batch_is_told_how_much_memory_it_needs():
    memory, mib = RunMemory(), 1024 * 1024
    assert memory.too_small_for(memory.largest_in_batch) == ""
    for payload in (65 * mib, 100 * mib + 1, 256 * mib, 341 * mib):
        said = memory.too_small_for(payload)
        heap, python = (int(number) for number in re.findall(r"_mib=(\d+)", said)[:2])
        assert RunMemory(executor_heap=heap, executor_python=python).largest_in_batch >= payload
    assert "no executor has enough" in memory.too_small_for(342 * mib)


def test_a_run_knows_the_memory_that_it_was_started_with():
    memory = RunMemory(executor_heap=4000, executor_python=5000)
    assert RunMemory.of_session(memory.spark_settings().get) == memory
    assert RunMemory.of_session({"spark.executor.memory": "8g"}.get) == RunMemory()


@pytest.mark.parametrize(
    "option", [{"rate": ["5/s"]}, {"rate": {}}, {"breaker": "[" * 100_000}], ids=["a list", "an object", "nested"]
)
def test_a_value_of_a_wrong_type_is_refused_by_name(option):
    with pytest.raises(InvalidRequest, match=next(iter(option))):
        QueueSettings.of(**option)
