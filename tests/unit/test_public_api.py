"""The public names, and what importing them costs: nothing but the standard library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import s3queue

FUNCTIONS = Path(s3queue.__file__).resolve().parents[1]


def test_the_public_names_are_these():
    """A name that is added here is a promise; one that is taken away breaks someone."""
    assert s3queue.__all__ == [
        "AccessDenied",
        "AttemptFailed",
        "Breaker",
        "Cancelled",
        "Claim",
        "Conflict",
        "Contended",
        "Context",
        "CorruptState",
        "DeadLetter",
        "DeadLetters",
        "Definition",
        "Deployment",
        "Events",
        "Flow",
        "Flows",
        "InvalidName",
        "InvalidPriority",
        "InvalidRequest",
        "LeaseLost",
        "Lock",
        "Message",
        "MessageNotFound",
        "MessageTooLarge",
        "NewerFormat",
        "NoSpace",
        "NotFound",
        "ObjectStore",
        "Postpone",
        "Processor",
        "Queue",
        "QueueError",
        "QueueFull",
        "QueueSettings",
        "Record",
        "Reject",
        "Report",
        "Retry",
        "RetryPolicy",
        "Send",
        "Stats",
        "Status",
        "Sweeper",
        "Unavailable",
        "Worker",
        "connect",
        "define",
        "secret",
    ]
    assert all(hasattr(s3queue, name) for name in s3queue.__all__)


def test_a_name_that_is_imported_later_is_listed_and_a_wrong_one_is_refused():
    assert set(s3queue.__all__) <= set(dir(s3queue))
    with pytest.raises(ImportError, match="Wroker"):
        from s3queue import Wroker  # noqa: F401


def test_every_error_can_be_caught_as_a_queue_error_but_those_that_handlers_raise():
    errors = [value for name in s3queue.__all__ if isinstance(value := getattr(s3queue, name), type)]
    raised = {error for error in errors if issubclass(error, Exception)}

    assert {error for error in raised if not issubclass(error, s3queue.QueueError)} == {
        s3queue.Postpone,
        s3queue.Reject,
        s3queue.Retry,
    }


def test_every_public_name_says_what_it_is_for():
    assert [name for name in s3queue.__all__ if not (getattr(s3queue, name).__doc__ or "").strip()] == []


@pytest.mark.parametrize(
    "code",
    [
        "import s3queue",
        "import s3queue; s3queue.connect('memory://x/emails').enqueue({'a': 1})",
        "import s3queue; s3queue.define('emails').handler(lambda body: None)",
    ],
)
def test_importing_s3queue_loads_nothing_but_the_standard_library(code):
    check = (
        f"{code}\n"
        "import sys\n"
        "heavy = {'boto3', 'botocore', 'pyspark', 'pydantic', 'aws_lambda_powertools', 'typer', 'rich', 'greenlet'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )

    shown = subprocess.run(
        [sys.executable, "-c", check],
        env=os.environ | {"PYTHONPATH": str(FUNCTIONS)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert shown.stdout.strip() == "[]"


def test_a_module_of_the_core_is_never_imported_as_functions_s3queue():
    assert not [name for name in sys.modules if name.startswith("functions.s3queue")]
