"""schedule add | list | next | pause | resume | remove: messages that come at the times of a cron line."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from s3queue.cli.arguments import QueueName, Yes
from s3queue.cli.command import command, group, program
from s3queue.cli.output import facts, table
from s3queue.cli.session import Session, shifted
from s3queue.errors import CorruptState, InvalidRequest
from s3queue.flow.schedules import ScheduleState, schedule, schedule_document
from s3queue.queue import Queue

schedules = group("Schedules of a queue: messages that come by themselves, at the times of a cron line.")
program.add_typer(schedules, name="schedule", rich_help_panel="Work")
ScheduleName = Annotated[
    str | None, typer.Argument(metavar="NAME", help="The schedule's name, as schedule list shows it.")
]


class Missed(StrEnum):
    last = "last"
    all = "all"
    skip = "skip"


def _shown(state: ScheduleState) -> Any:
    source = "code" if state.source == "code" else "run time"
    return facts(
        [
            ("schedule", state.schedule.name),
            ("cron", f"{state.schedule.cron} ({state.schedule.tz})"),
            ("state", _word(state)),
            ("made in", source),
            ("body", state.schedule.body[:200]),
            *(("next" if number == 0 else "", _time(at)) for number, at in enumerate(state.upcoming)),
        ]
    )


def _word(state: ScheduleState) -> str:
    return "paused" if state.paused else state.problem or "active"


def _time(at: datetime) -> str:
    return f"{at:%a %Y-%m-%d %H:%M} UTC"


@command(
    schedules,
    'schedule add orders report --cron "15 9 * * 1-5" --tz Europe/Berlin --body \'{"kind": "daily"}\'',
    'schedule add orders cleanup --cron "0 3 * * *" --missed skip --replace',
)
def add(
    ctx: typer.Context,
    queue: QueueName = None,
    name: ScheduleName = None,
    cron: Annotated[str, typer.Option("--cron", help="Five fields: minute hour day month weekday.")] = "",
    tz: Annotated[str, typer.Option("--tz", help="The time zone of the five fields.")] = "UTC",
    body: Annotated[str, typer.Option("--body", help="The payload: JSON, or any other text.")] = "null",
    priority: Annotated[int, typer.Option("--priority", help="0 to 255; 255 runs first.")] = 0,
    missed: Annotated[
        Missed, typer.Option("--missed", help="Of times that passed while nobody swept: the last, all (100), or none.")
    ] = Missed.last,
    replace: Annotated[bool, typer.Option("--replace", help="Change the schedule if it exists.")] = False,
) -> None:
    """Add a schedule. Its messages are put into the queue by the sweeper, or by a pull worker that sweeps.

    JSON: queue, name, cron, tz, body, priority, missed, source, paused, after_at, next_at (five times), problem.
    """
    session = Session.of(ctx)
    where, wanted = shifted(session, queue, name, "the schedule's NAME")
    if not cron:
        raise InvalidRequest('--cron is missing: write five fields, such as --cron "15 9 * * 1-5"')
    opened = session.queue(where)
    opened.refresh()
    made = schedule(cron, name=wanted, tz=tz, body=_body(body), priority=priority, missed=missed.value)
    state = opened.schedules.add(made, replace_existing=replace)
    session.answer({"queue": opened.name} | schedule_document(state), _shown(state))


def _body(text: str) -> Any:
    """As JSON if it is JSON, so that a list shows it as such; otherwise as text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


@command(schedules, "schedule list orders", name="list")
def list_(ctx: typer.Context, queue: QueueName = None) -> None:
    """List every schedule, with its next time.

    JSON: a list of name, cron, tz, body, priority, missed, source (code, runtime), paused, after_at, next_at, problem.
    """
    session = Session.of(ctx)
    opened = session.queue(queue)
    found = opened.schedules.list()
    rows = [
        [
            one.schedule.name,
            one.schedule.cron,
            one.schedule.tz,
            _word(one),
            _time(one.upcoming[0]) if one.upcoming else "-",
            one.schedule.missed,
            one.source,
        ]
        for one in found
    ]
    session.answer(
        [schedule_document(one) for one in found],
        table(["~schedule", "cron", "time zone", "~state", "next", "missed", "made in"], rows),
    )
    if not found:
        session.note(f"{opened.name} has no schedule")


@command(schedules, "schedule next orders report", name="next")
def next_(ctx: typer.Context, queue: QueueName = None, name: ScheduleName = None) -> None:
    """Show one schedule and its next five times.

    JSON: queue, name, cron, tz, body, priority, missed, source, paused, after_at, next_at (five times), problem.
    """
    session, opened, wanted = _one(ctx, queue, name)
    state = opened.schedules.get(wanted)
    session.answer({"queue": opened.name} | schedule_document(state), _shown(state))


@command(schedules, "schedule pause orders report")
def pause(ctx: typer.Context, queue: QueueName = None, name: ScheduleName = None) -> None:
    """Let no more messages come. One that is in the queue already, minutes before its time, still runs.

    JSON: queue, name, cron, tz, body, priority, missed, source, paused, after_at, next_at, problem.
    """
    session, opened, wanted = _one(ctx, queue, name)
    state = opened.schedules.pause(wanted)
    session.done({"queue": opened.name} | schedule_document(state), f"{wanted} of {opened.name} is paused")


@command(schedules, "schedule resume orders report")
def resume(ctx: typer.Context, queue: QueueName = None, name: ScheduleName = None) -> None:
    """Let messages come again. What would have come meanwhile does not.

    JSON: queue, name, cron, tz, body, priority, missed, source, paused, after_at, next_at, problem.
    """
    session, opened, wanted = _one(ctx, queue, name)
    state = opened.schedules.resume(wanted)
    session.done({"queue": opened.name} | schedule_document(state), f"{wanted} of {opened.name} is active")


@command(schedules, "schedule remove orders report --yes")
def remove(ctx: typer.Context, queue: QueueName = None, name: ScheduleName = None, yes: Yes = False) -> None:
    """Remove a schedule. One that is defined in code is removed there; here it can only be paused.

    JSON: queue, name, removed.
    """
    session, opened, wanted = _one(ctx, queue, name)
    # One that cannot be read can be removed, too.
    with suppress(CorruptState):
        opened.schedules.get(wanted)
    session.confirm(f"Remove the schedule {wanted} of {opened.name}?", yes=yes)
    opened.schedules.remove(wanted)
    session.done({"queue": opened.name, "name": wanted, "removed": True}, f"{wanted} of {opened.name} is removed")


def _one(ctx: typer.Context, queue: str | None, name: str | None) -> tuple[Session, Queue, str]:
    session = Session.of(ctx)
    where, wanted = shifted(session, queue, name, "the schedule's NAME")
    return session, session.queue(where), wanted
