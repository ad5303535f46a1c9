"""Why a Spark job failed, in a line that a person can use: not the hundred that Spark prints."""

from __future__ import annotations

import re

#: `[CAST_INVALID_INPUT] The value …`; the first one is the cause, what follows only passes it on.
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]*")
#: The last line of a traceback from a Python worker: `ValueError: …`.
_RAISED = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Reject|Warning|Found|Denied|Unavailable)): (.*)$"
)
#: Conditions that only say that something else went wrong.
_WRAPPERS = ("[FAILED_EXECUTE_UDF]", "[STREAM_FAILED]", "[TASK_WRITE_FAILED]")


class SparkError(Exception):
    """A query failed; the text is its cause."""


def reason_of(error: BaseException) -> str:
    """The cause of a failed query, as one line."""
    text = str(error)
    lines = text.splitlines()
    if any("Python worker" in line for line in lines[:3]):
        raised = [line.strip() for line in lines if _RAISED.match(line.strip())]
        if raised:
            return raised[-1][:1000]
    for found in _CONDITION.findall(text):
        if not found.startswith(_WRAPPERS):
            return str(found)[:1000]
    first = next((line.strip() for line in lines if line.strip()), "")
    return first[:1000] or type(error).__name__
