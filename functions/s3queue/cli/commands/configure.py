"""configure, set-concurrency, pause, resume: change the settings of a queue while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Annotated, Any

import typer

from s3queue.cli.arguments import QueueName, settings_like
from s3queue.cli.aws import reserve_concurrency, worker_function
from s3queue.cli.command import command, program
from s3queue.cli.output import table
from s3queue.cli.session import Session, shifted
from s3queue.cli.words import duration, pair, whole_number
from s3queue.encoding import cut
from s3queue.errors import InvalidRequest, QueueError
from s3queue.flow.effective_settings import effective
from s3queue.queue import Queue
from s3queue.settings import RENAMED, QueueSettings

PANEL = "Queues"
_YES, _NO = ("true", "yes", "on"), ("false", "no", "off")


def split_arguments(queue: str | None, settings: Sequence[str] | None) -> tuple[str | None, list[str]]:
    """QUEUE can be left out if the URL names it: a setting has an equals sign."""
    if queue and "=" in queue:
        return None, [queue, *(settings or ())]
    return queue, list(settings or ())


def changes_of(pairs: Sequence[str]) -> dict[str, Any]:
    """The `KEY=VALUE` pairs as arguments for `Queue.configure`; `KEY=default` removes an override.

    Raises:
        InvalidRequest: there is no such setting, or the value is wrong.
    """
    known = {field.name: getattr(QueueSettings(), field.name) for field in fields(QueueSettings)}
    changes: dict[str, Any] = {}
    for text in pairs:
        name, value = pair(text)
        name = name.replace("-", "_")
        name = RENAMED.get(name, name)
        setting = name if name in known else name.removesuffix("_seconds")
        if setting not in known:
            raise InvalidRequest(f"there is no setting {name!r}; the settings are {', '.join(sorted(known))}")
        if value in ("default", ""):
            changes[setting] = None
        elif isinstance(known[setting], timedelta):
            changes[setting] = duration(value)
        else:
            changes[setting] = _value(setting, value, known[setting])
    return changes


def _value(setting: str, value: str, default: Any) -> Any:
    if isinstance(default, bool):
        if value.lower() not in (*_YES, *_NO):
            raise InvalidRequest(f"{setting} must be true or false, not {value!r}")
        return value.lower() in _YES
    number = whole_number(value)
    is_whole = isinstance(default, int) and setting not in ("max_message_size", "max_batch_size")
    if is_whole and number is None:
        raise InvalidRequest(f"{setting} must be a whole number, not {cut(value)}")
    return value if number is None else number


@command(
    program,
    "configure orders",
    "configure orders max_attempts=5 visibility_timeout=2m",
    "configure orders max_attempts=default",
    panel=PANEL,
)
def configure(
    ctx: typer.Context,
    queue: QueueName = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="What to change: durations as 90s, sizes as '64 MiB'; `default` removes a change.",
            autocompletion=settings_like,
        ),
    ] = None,
) -> None:
    """Show a queue's settings, or change them for every process within ten seconds.

    JSON: queue, overrides (the content of queue.json), settings (as they apply), origins (default, definition or
    queue.json, of each), published_by (deployment, worker, or null: then the definition is unknown).
    """
    session = Session.of(ctx)
    queue, pairs = split_arguments(queue, settings)
    changed = session.queue(queue)
    changes = changes_of(pairs)
    if changes:
        changed.configure(**changes)
    _show(session, changed)


def _show(session: Session, queue: Queue) -> None:
    overrides = queue.overrides()
    found = effective(queue.defined, overrides)
    applied, refused = queue.defined.with_suitable(overrides)
    published = queue.published_settings()
    rows = [[one.name, one.shown, one.origin] for one in found]
    session.answer(
        {
            "queue": queue.name,
            "overrides": overrides,
            "settings": applied.to_json(),
            "origins": {one.name: one.origin for one in found},
            "published_by": published.by if published else None,
        },
        table(["setting", "value", "from"], rows, title=queue.name),
    )
    for name, why in refused.items():
        session.note(f"queue.json has {name}, which does not apply: {why}")
    if published is None:
        session.note("nobody has published this queue's definition: what is not in queue.json is shown as its default")


@command(
    program,
    "set-concurrency orders 20",
    "set-concurrency orders 20 --function my-worker",
    name="set-concurrency",
    panel=PANEL,
)
def set_concurrency(
    ctx: typer.Context,
    queue: QueueName = None,
    concurrency: Annotated[str | None, typer.Argument(metavar="N", help="Messages at one time.")] = None,
    function: Annotated[
        str | None, typer.Option("--function", help="The worker function; default: the one that S3 notifies.")
    ] = None,
) -> None:
    """Set how many messages run at one time: threads of pull workers, and the function's reserved concurrency.

    JSON: queue, concurrency, function (null if there is none).
    """
    session = Session.of(ctx)
    name, wanted = shifted(session, queue, concurrency, "the number N")
    number = whole_number(wanted)
    if number is None:
        raise InvalidRequest(f"N must be a whole number, not {cut(wanted)}; -h shows an example")
    changed = session.queue(name)
    changed.configure(concurrency=number)
    known = function or worker_function(session, changed.name)
    if known:
        try:
            reserve_concurrency(session, known, number)
        except QueueError as error:
            raise type(error)(f"queue.json has {number} now, but the function was not changed: {error}") from error
    told = f"and {known} may run {number} at a time" if known else "for pull workers; the worker function is unknown"
    session.done(
        {"queue": changed.name, "concurrency": number, "function": known},
        f"{changed.name} has concurrency {number}, {told}",
    )


@command(program, "pause orders", panel=PANEL)
def pause(ctx: typer.Context, queue: QueueName = None) -> None:
    """Stop claiming. Running messages finish; new messages wait.

    JSON: queue, paused.
    """
    session = Session.of(ctx)
    paused = session.queue(queue)
    paused.pause()
    session.done(
        {"queue": paused.name, "paused": True}, f"{paused.name} is paused; s3queue resume {paused.name} ends the pause"
    )


@command(program, "resume orders", panel=PANEL)
def resume(ctx: typer.Context, queue: QueueName = None) -> None:
    """End a pause. Workers notice it within ten seconds, functions with the next sweep.

    JSON: queue, paused.
    """
    session = Session.of(ctx)
    resumed = session.queue(queue)
    resumed.resume()
    session.done({"queue": resumed.name, "paused": False}, f"{resumed.name} is running again")
