"""breaker show | open | close | auto: a queue's breaker, and an operator's word on it."""

from __future__ import annotations

from typing import Any, Literal

import typer

from s3queue.cli.arguments import QueueName
from s3queue.cli.command import command, group, program
from s3queue.cli.output import table
from s3queue.cli.session import Session
from s3queue.cli.words import when
from s3queue.dashboard.overview import breaker_word
from s3queue.documents.breaker_document import StoredBreaker
from s3queue.encoding import format_instant

breaker = group("The breaker of a queue: it stops a queue that keeps failing.")
program.add_typer(breaker, name="breaker", rich_help_panel="Queues")


def breaker_document(name: str, found: StoredBreaker) -> dict[str, Any]:
    document = found.document
    return {
        "queue": name,
        "state": document.state,
        "forced": document.is_forced,
        "failures": document.failures,
        "error": document.error,
        "opened_at": format_instant(document.opened_at) if document.opened_at else None,
        "until": format_instant(found.until) if found.until else None,
    }


@command(breaker, "breaker show orders")
def show(ctx: typer.Context, queue: QueueName = None) -> None:
    """Show whether messages run, how many have failed in a row, and when the next one probes.

    JSON: queue, state (closed, open, probing), forced, failures, error, opened_at, until.
    """
    session = Session.of(ctx)
    opened = session.queue(queue)
    found = opened.breaker()
    document, now = found.document, opened.store.list(opened.keys.root, limit=1).at
    row = [
        breaker_word(document),
        str(document.failures),
        when(document.opened_at, now) if document.opened_at else "-",
        when(found.until, now) if found.until else "-",
        document.error or "-",
    ]
    session.answer(
        breaker_document(opened.name, found), table(["breaker", ">failures", "opened", "until", "~error"], [row])
    )


def _force(ctx: typer.Context, queue: str | None, how: Literal["open", "closed", "auto"], said: str) -> None:
    session = Session.of(ctx)
    opened = session.queue(queue)
    found = opened.force_breaker(how)
    session.done(breaker_document(opened.name, found), f"{opened.name}: {said}, within ten seconds")
    session.note("this holds for workers whose queue has a breaker (define(…, breaker=…), or s3queue configure)")


@command(breaker, "breaker open orders", name="open")
def open_(ctx: typer.Context, queue: QueueName = None) -> None:
    """Claim nothing, until `breaker close` or `breaker auto`. Running messages finish.

    JSON: queue, state, forced, failures, error, opened_at, until.
    """
    _force(ctx, queue, "open", "the breaker is open, and stays so")


@command(breaker, "breaker close orders")
def close(ctx: typer.Context, queue: QueueName = None) -> None:
    """Claim whatever fails, until `breaker open` or `breaker auto`.

    JSON: queue, state, forced, failures, error, opened_at, until.
    """
    _force(ctx, queue, "closed", "the breaker is closed, and stays so")


@command(breaker, "breaker auto orders")
def auto(ctx: typer.Context, queue: QueueName = None) -> None:
    """Close the breaker, and leave it to itself again.

    JSON: queue, state, forced, failures, error, opened_at, until.
    """
    _force(ctx, queue, "auto", "the breaker is closed, and opens by itself")
