"""The queue of `make aws-smoke`: its handler does as its message says, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from handlers import worker
from s3queue import DeadLetters
from s3queue.documents.record import Record
from support.installation import Installation, LambdaContext, forget


@pytest.fixture
def installation(installation: Installation) -> Installation:
    installation.configure(queue="smoke", workers={"smoke": "s3queue-smoke"})
    return installation


def run(installation: Installation, name: str, body: dict[str, Any]) -> dict[str, int]:
    return worker.handle(installation.created(installation.put(f"smoke/messages/{name}", body)), LambdaContext())


def record(installation: Installation, name: str) -> Record:
    found = installation.queue("smoke").status(f"messages/{name}").record
    assert found
    return found


def test_the_result_says_when_the_handler_began(installation: Installation) -> None:
    before = time.time()
    assert run(installation, "light", {"do": "return"}) == {"completed": 1}
    result = record(installation, "light").result
    assert before <= result["began_at"] <= time.time()
    assert result["attempt"] == 1


def test_it_fails_once(installation: Installation) -> None:
    installation.queue("smoke").configure(retry_base=0.1)
    assert run(installation, "retry", {"do": "fail"}) == {"retried": 1, "completed": 1}
    first, second = record(installation, "retry").attempts
    assert (first.failure and first.failure.type, second.failure) == ("ConnectionError", None)


def test_it_refuses_a_message_until_that_is_replayed(installation: Installation) -> None:
    assert run(installation, "dead", {"do": "reject"}) == {"dead": 1}
    path = DeadLetters(installation.queue("smoke")).replay("messages/dead")
    # Another process: what it remembers is in the bucket.
    forget()
    assert worker.handle(installation.created(f"smoke/{path}"), LambdaContext()) == {"completed": 1}
    assert run(installation, "another", {"do": "reject"}) == {"dead": 1}


def test_it_dies_in_the_middle_of_a_message(installation: Installation) -> None:
    event = installation.created(installation.put("smoke/messages/killed", {"do": "die"}))
    program = (
        "import sys, json; sys.path[:0] = sys.argv[2:]\n"
        "from handlers import worker; from support.installation import LambdaContext\n"
        "worker.handle(json.loads(sys.argv[1]), LambdaContext())"
    )
    done = subprocess.run([sys.executable, "-c", program, json.dumps(event), *sys.path], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert installation.outcome("messages/killed", "smoke") == "processing"


def test_what_it_is_not_told_to_do_is_dead_at_once(installation: Installation) -> None:
    assert run(installation, "unknown", {"undo": "everything"}) == {"dead": 1}
