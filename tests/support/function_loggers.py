"""Takes the functions' log handlers away again: they write to the stdout of the test that was running then."""

from __future__ import annotations

import logging

from handlers.telemetry import LOGGERS


def forget_loggers() -> None:
    """A later test's lines, or a server thread's, would otherwise go to a stream that pytest has closed."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
        # Powertools' marks that a logger has its handler: it would go on writing to an earlier test's stdout.
        for mark in ("init", "powertools_handler"):
            logger.__dict__.pop(mark, None)
