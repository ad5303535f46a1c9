"""Text that strangers wrote, made safe for a terminal: names, errors and payloads may hold escape sequences."""

from __future__ import annotations

import logging
import sys
import unicodedata
from collections.abc import Mapping
from types import TracebackType
from typing import Any

#: Categories of Unicode that a terminal may obey instead of showing: control, format (bidi overrides), line separators,
#: surrogates, and what is private or unassigned.
_OBEYED = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn"})


def clean(text: Any, *, keep: str = "") -> str:
    """The text with everything that a terminal could obey made visible: an escape character becomes `\\x1b`."""
    return "".join(
        character if character in keep or unicodedata.category(character) not in _OBEYED else _visible(character)
        for character in str(text)
    )


class CleanFormatter(logging.Formatter):
    """Log lines that a terminal only shows, and that stay one line each; a traceback keeps its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = clean(record.message)
        return super().formatMessage(record)

    def formatException(  # noqa: N802
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return clean(super().formatException(ei), keep="\n")

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return clean(super().formatStack(stack_info), keep="\n")


def log_to_stderr(level: int, format: str) -> None:
    """Configure logging for a program that people watch; once, as `logging.basicConfig`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(CleanFormatter(format))
    logging.basicConfig(level=level, handlers=[handler])


class _UntilConfigured(logging.StreamHandler[Any]):
    """Writes while the process itself has configured no logging: then its own handlers write the lines."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def heed_log_level(environment: Mapping[str, str]) -> None:
    """Let the library log as `S3QUEUE_LOG` says: `debug` for a line per step of a message. Safe to repeat.

    Without the variable nothing is touched: logging is the process's own. With it, only the level of the logger
    `s3queue` is set, and lines go to stderr if nobody else takes them.
    """
    wanted = environment.get("S3QUEUE_LOG", "")
    if not wanted:
        return
    ours = logging.getLogger("s3queue")
    level = logging.getLevelNamesMapping().get(wanted.upper())
    if level is None:
        # A misspelt log level is no reason to process nothing.
        ours.warning("S3QUEUE_LOG is %r, and ignored: use debug, info, warning or error", wanted)
        return
    ours.setLevel(level)
    if not ours.hasHandlers():
        handler = _UntilConfigured(sys.stderr)
        handler.setFormatter(CleanFormatter("%(asctime)s %(levelname)s %(message)s"))
        ours.addHandler(handler)


def clean_last_resort() -> None:
    """Clean the lines of a process that configures no logging, such as Spark's executors; safe to repeat."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(CleanFormatter("%(levelname)s %(name)s %(message)s"))


def _visible(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return {9: "\\t", 10: "\\n", 13: "\\r"}.get(number, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
