"""doctor: one finding per line, with the way out. No worker would run its test objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Annotated

import typer
from rich.text import Text

from s3queue.cli.arguments import QueueName
from s3queue.cli.command import BAD, command, program
from s3queue.cli.output import table, words
from s3queue.cli.session import Session
from s3queue.cli.words import clean, duration
from s3queue.errors import QueueError

from . import checks, races
from .checks import Examination, Finding

PANEL = "Operate"
Check = Callable[[Examination], Iterator[Finding]]


@command(program, "doctor orders", "doctor orders --send-test", "doctor orders --json --races 50", panel=PANEL)
def doctor(
    ctx: typer.Context,
    queue: QueueName = None,
    send_test: Annotated[
        bool,
        typer.Option(
            "--send-test", help="Also send an empty batch, which runs no handler, and wait until it is completed."
        ),
    ] = False,
    rounds: Annotated[int, typer.Option("--races", min=0, help="Races of each kind; 0 skips them.")] = 10,
    wait: Annotated[
        timedelta,
        typer.Option(
            "--wait", parser=duration, metavar="DURATION", show_default="30s", help="How long --send-test waits."
        ),
    ] = timedelta(seconds=30),
) -> None:
    """Check what a queue needs: credentials, permissions, atomic conditional writes, events, sweeper, clock.

    Exit code 1 if there is a problem. JSON: queue, url, healthy, checks (check, verdict, found, way_out); a verdict is
    ok, warning, problem or skipped.
    """
    session = Session.of(ctx)
    examined = Examination(session, session.queue(queue, may_be_new=True))
    steps: list[Check] = [checks.reach, checks.permissions]
    steps += [lambda of: races.conditional_writes(of), lambda of: races.run(of, rounds)]
    steps += [checks.bucket_settings, checks.events]
    if send_test:
        steps.append(lambda of: checks.event_arrives(of, wait))
    steps += [checks.sweeper, checks.state]
    found = list(checks.credentials(examined))
    for step in steps:
        try:
            found += step(examined)
        except QueueError as error:
            found.append(Finding("the store", "problem", str(error), "correct this first, then run the doctor again"))
            if step is checks.reach:
                break
        finally:
            examined.clean_up()
    found += examined.leftovers()
    problems = [one for one in found if one.verdict == "problem"]
    document = {
        "queue": examined.queue.name,
        "url": f"{session.bucket_url}/{examined.queue.name}",
        "healthy": not problems,
        "checks": [one.to_json() for one in found],
    }
    rows = [[words(one.verdict), one.check, _told(one)] for one in found]
    session.answer(document, table(["verdict", "check", "~found"], rows))
    if problems:
        raise typer.Exit(BAD)


def _told(one: Finding) -> Text:
    return Text(clean(one.found) + (f"\n→ {clean(one.way_out)}" if one.way_out else ""))
