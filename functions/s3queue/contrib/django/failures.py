"""Failures of tasks: what a task raised, as a record keeps it, and as Django shows it."""

from __future__ import annotations

import re
from typing import Any

from s3queue import errors
from s3queue.documents.record import Failure
from s3queue.errors import AttemptFailed, Postpone, Reject, Retry

from .tasks import TaskError

#: `shop.tasks.OutOfStock: none left`
_PATH = re.compile(r"((?:\w+\.)+\w+)(?:: |\Z)")


def raised(error: BaseException, *, retries: bool) -> BaseException:
    """What to raise in the place of what a task raised: a failure of the same name, whose text begins with the class's
    import path. It is final, unless exceptions are retried; what the task asked for with Retry, Reject or Postpone is
    done.
    """
    if isinstance(error, (Retry, Reject, Postpone)):
        return error
    kind = type(error)
    named: Any = type(kind.__name__, (Exception if retries else Reject,), {})
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be made"
    failure: Exception = named(f"{kind.__module__}.{kind.__qualname__}: {text}")
    return failure.with_traceback(error.__traceback__)


def task_error(failure: Failure) -> TaskError:
    """As Django shows it. What no task raised (LeaseExpired, HandlerTimeout) is an AttemptFailed."""
    found = _PATH.match(failure.message)
    if found and found[1].endswith(f".{failure.type}"):
        path, text = found[1], failure.message
    else:
        kind = failure.type if hasattr(errors, failure.type) else AttemptFailed.__name__
        path, text = f"{errors.__name__}.{kind}", f"{failure.type}: {failure.message}"
    return TaskError(exception_class_path=path, traceback=f"{failure.details}{text}\n")
