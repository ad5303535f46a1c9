"""What strangers wrote reaches a terminal as text: log lines of every program that people watch."""

from __future__ import annotations

import io
import logging
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3queue.printable import CleanFormatter, clean
from spark import drain, pipeline
from spark.storage.bucket import Bucket

#: Clears the screen, sets the title, answers as if typed, C1 forms of these, a bidi override, a forged line.
HOSTILE = "\x1b[2J \x1b]0;owned\x07 \x1bP$q\x1b\\ \x9b31m \x9d0;x\x9c \u202egpj.exe \r\n2026 INFO all is well \x00\x08"


def is_safe(said: str) -> bool:
    obeyed = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return all(character == "\n" or unicodedata.category(character) not in obeyed for character in said)


@contextmanager
def fresh_logging() -> Iterator[None]:
    """The root logger as a program has it that has just begun: pytest's own handlers would stand in the way."""
    logger = logging.getLogger()
    before, level = logger.handlers[:], logger.level
    logger.handlers = []
    try:
        yield
    finally:
        logger.handlers, logger.level = before, level


def test_a_log_line_is_one_line_that_a_terminal_only_shows() -> None:
    stream = io.StringIO()
    logger = logging.Logger("x")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(CleanFormatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)

    logger.warning("claim failed, message kept: %s", HOSTILE)
    said = stream.getvalue()
    assert said.count("\n") == 1
    assert is_safe(said)
    assert "\\x1b[2J" in said

    stream.truncate(0)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("unexpected: %s", HOSTILE, stack_info=True)
    said = stream.getvalue().lstrip("\0")
    assert is_safe(said)
    assert "Traceback (most recent call last):\n  File" in said


@given(st.text())
def test_whatever_is_written_is_shown_and_nothing_else(text: str) -> None:
    assert is_safe(clean(text)), repr(clean(text))
    assert "\n" not in clean(text)


def test_a_run_logs_what_a_terminal_only_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(bucket: str, queue: str, run: str, **_: Any) -> int:
        logging.getLogger("spark.driver").warning("%s/%s: lost", queue, HOSTILE)
        return 0

    monkeypatch.setattr(drain, "drain", fake)
    monkeypatch.setattr(drain.signal, "signal", lambda *_: None)
    with fresh_logging():
        assert drain.main(["--bucket", "b", "--queue", "q", "--run", "r"]) == 0
    said = capsys.readouterr().err
    assert "owned" in said
    assert is_safe(said)
    assert said.count("\n") == 1


def test_the_pipeline_logs_what_a_terminal_only_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Job:
        @staticmethod
        def main(arguments: list[str]) -> int:
            logging.getLogger("spark.archive").error("%s is not archived", HOSTILE)
            return 0

    monkeypatch.setattr(pipeline.importlib, "import_module", lambda name: Job)
    with fresh_logging():
        assert pipeline.main(["archive"]) == 0
    said = capsys.readouterr().err
    assert "owned" in said
    assert is_safe(said)


def test_an_executor_logs_lines_that_a_terminal_only_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody configures logging there: Python's handler of last resort prints what it is given."""
    monkeypatch.setattr(logging, "lastResort", type(logging.lastResort)(logging.WARNING))
    with fresh_logging():
        Bucket("executors", "http://127.0.0.1:9", "eu-west-1").store()
        logging.getLogger("spark.rows").warning("object skipped: %s", HOSTILE)
    said = capsys.readouterr().err
    assert "WARNING spark.rows object skipped: \\x1b[2J" in said
    assert said.count("\n") == 1
    assert is_safe(said)
