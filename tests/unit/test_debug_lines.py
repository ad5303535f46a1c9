"""Debug lines: with `S3QUEUE_LOG=debug` every step of a message is a line, and without it nothing is touched."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import infra
from s3queue.printable import heed_log_level


@pytest.fixture
def ours():
    logger = logging.getLogger("s3queue")
    level, handlers = logger.level, list(logger.handlers)
    yield logger
    logger.setLevel(level)
    logger.handlers = handlers


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.DEBUG, logger="s3queue")
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]


def test_a_life_is_told_line_by_line_with_the_event_first_and_then_the_key(bench, queue, lines):
    path = queue.enqueue(b"1")
    bench.processor(queue, lambda body: {"secret": 1}).run(path)

    assert lines() == [
        f"claimed: orders/{path}, attempt 1: {queue.worker_id}",
        f"handler started: orders/{path}, attempt 1",
        f"handler returned: orders/{path}, attempt 1",
        f"recorded: orders/{path}, attempt 1: completed",
        f"cleared: orders/{path}, attempt 1",
    ]


def test_failures_are_told_by_their_type_and_never_by_their_text(bench, queue, lines):
    def handler(body: int) -> None:
        raise ValueError("the customer's secret")

    path = queue.enqueue(b"1")
    processor = bench.processor(queue, handler)
    while queue.status(path).state != "dead":
        processor.run(path, read_first=True)
        bench.clock.advance(60)

    told = [line.partition(":")[0] for line in lines()]
    assert told[:5] == ["claimed", "handler started", "handler raised", "waiting", "claimed"]
    assert told[-2:] == ["burying", "buried"]
    assert any("ValueError" in line for line in lines())
    assert not any("secret" in line for line in lines())


def test_lost_claims_lines_and_expired_leases_are_told(bench, queue, lines):
    batch = queue.enqueue_many([1, 2])[0]
    claim = queue.claim(batch)
    assert queue.claim(batch) is None
    queue.extend(claim, 5)
    bench.clock.advance(60)
    bench.sweeper(queue).sweep()
    bench.processor(queue, lambda body: None).run(batch, read_first=True)

    told = [line.partition(":")[0] for line in lines()]
    assert {"claim lost", "extended", "lease ran out", "waiting"} <= set(told)
    assert f"handler started: orders/{batch}, attempt 2: line 2" in lines()


def test_without_the_variable_nothing_is_touched(ours):
    before = (ours.level, list(ours.handlers))
    heed_log_level({})
    assert (ours.level, list(ours.handlers)) == before


def test_a_misspelt_level_is_said_and_ignored(ours, caplog):
    before = ours.level
    heed_log_level({"S3QUEUE_LOG": "loud"})
    assert ours.level == before
    assert "S3QUEUE_LOG is 'loud', and ignored" in caplog.text


PROGRAM = """
import logging, sys
from s3queue import Worker, connect
{before}
queue = connect("memory://x/orders")
{after}
queue.enqueue(b"1", name="one")
Worker(queue, lambda body: None, sweep=False).run_until_empty()
"""


def ran(before: str = "", after: str = "", **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before, after=after)],
        env={"PYTHONPATH": str(infra.FUNCTIONS)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


def test_a_program_of_its_own_logs_the_steps_if_it_is_asked_to():
    assert ran() == ""
    said = ran(S3QUEUE_LOG="debug")
    assert said.count("claimed: orders/messages/one, attempt 1") == 1
    assert "DEBUG recorded: orders/messages/one, attempt 1: completed" in said


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_program_with_its_own_logging_gets_each_line_once_in_its_own_format(where):
    configured = 'logging.basicConfig(format="OWN %(message)s")'
    said = ran(**{where: configured}, S3QUEUE_LOG="debug")
    assert said.count("claimed: orders/messages/one, attempt 1") == 1
    assert "OWN claimed: orders/messages/one" in said
