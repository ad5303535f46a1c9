"""work, sweep: a pull worker in this terminal, and one sweep by hand."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from s3queue.cli.arguments import QueueName
from s3queue.cli.aws import dispatcher, worker_function
from s3queue.cli.command import command, program
from s3queue.cli.definitions import find, find_all, load
from s3queue.cli.output import facts
from s3queue.cli.session import Session
from s3queue.cli.supervision import ChildOptions, supervise
from s3queue.cli.words import clean, duration
from s3queue.clock import SystemClock
from s3queue.errors import InvalidRequest
from s3queue.printable import log_to_stderr
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from s3queue.sweeper.sweeper import Sweeper
from s3queue.worker.definition import Definition
from s3queue.worker.processes import RECYCLED
from s3queue.worker.pull_worker import Worker, check_pace
from s3queue.worker.several import SeveralWorkers

PANEL = "Work"
#: Events that are printed while a worker runs.
_TOLD = ("message.completed", "message.retry", "message.dead")


@command(
    program,
    "work queues.emails --url s3://my-bucket",
    "work ./emails.py --concurrency 8",
    "work queues.emails --until-empty",
    "work queues.emails queues.webhooks",
    "work queues.emails --metrics-port 9100",
    "work --all --processes 4 --max-messages-per-process 10000 --max-mib-per-process 500",
    panel=PANEL,
)
def work(
    ctx: typer.Context,
    modules: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODULE", help="queues.emails, queues.emails:queue, or a .py file; also several."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every queue of this project's package `queues`.")] = False,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, help="Per queue and process; default: the queue's setting.")
    ] = None,
    poll_interval: Annotated[
        timedelta,
        typer.Option(
            "--poll-interval",
            parser=duration,
            metavar="DURATION",
            show_default="1s",
            help="Time between two polls when idle.",
        ),
    ] = timedelta(seconds=1),
    sweep: Annotated[bool, typer.Option("--sweep/--no-sweep", help="Also sweep, if no sweeper function does.")] = True,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="End when no message can run.")] = False,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, max=256, help="So many processes; one that dies is replaced."),
    ] = None,
    max_messages: Annotated[
        int | None,
        typer.Option(
            "--max-messages-per-process", min=1, help="A process is replaced after so many attempts; with --processes."
        ),
    ] = None,
    max_mib: Annotated[
        int | None,
        typer.Option(
            "--max-mib-per-process", min=1, help="A process is replaced when it uses more MiB; with --processes."
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=0,
            max=65535,
            help="Serve metrics for Prometheus at /metrics on this port; each of --processes on the next one; 0: any.",
        ),
    ] = None,
    metrics_host: Annotated[
        str | None,
        typer.Option("--metrics-host", show_default="127.0.0.1", help="The address for --metrics-port; 0.0.0.0: all."),
    ] = None,
    # How --processes calls this command for each of its processes.
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
    report: Annotated[str | None, typer.Option("--report", hidden=True)] = None,
) -> None:
    """Run queues' handlers here: import MODULE, process its messages, stop gracefully on Ctrl-C or SIGTERM.

    With --processes, exit code 1: a process did not stop well, or died again and again.

    JSON, at the end: queue, worker, and processed, succeeded, failed, retried, dead, released, lost, running. Of
    several queues: queues and workers instead. With --processes: queues, processes, recycled, deaths, and the sums.
    """
    session = Session.of(ctx)
    if not (modules or everything) or (modules and everything):
        raise InvalidRequest("give a MODULE, or several, or --all")
    # Now, and not in each of several processes, which would be started again and again.
    seconds = check_pace(concurrency, poll_interval)
    if processes is None and parent is None and (max_messages or max_mib):
        raise InvalidRequest("a process is replaced only with --processes")
    if processes is not None and not session.is_s3:
        raise InvalidRequest(f"--processes needs a bucket: what {session.bucket_url} holds, other processes do not see")
    if metrics_host is not None and metrics_port is None:
        raise InvalidRequest("--metrics-host needs a --metrics-port")
    if metrics_port and metrics_port + (processes or 1) - 1 > 65535:
        raise InvalidRequest(f"{processes} processes from port {metrics_port} on: the last port is 65535")
    chosen = _defined(session, modules or [])
    if processes is not None:
        options = ChildOptions(
            modules=tuple(chosen),
            concurrency=concurrency,
            poll_interval=poll_interval,
            sweep=sweep,
            until_empty=until_empty,
            max_messages=max_messages,
            max_mib=max_mib,
            metrics_port=metrics_port,
            metrics_host=metrics_host or "127.0.0.1",
        )
        for definition in chosen.values():
            session.queue(definition.name, settings=definition.settings).publish_settings("worker")
        raise typer.Exit(supervise(session, options, [one.name for one in chosen.values()], processes))
    workers = []
    for definition in chosen.values():
        queue = session.queue(definition.name, settings=definition.settings)
        queue.refresh()
        if parent is None:
            queue.publish_settings("worker")
        workers.append(Worker(queue, definition, concurrency=concurrency, poll_interval=seconds, sweep=sweep))
        if not session.quiet:
            for name in _TOLD:
                queue.events.on(name, lambda fields: _tell(session, fields))  # type: ignore[arg-type]
        where = f"{session.bucket_url}/{queue.name}"
        session.note(f"{queue.worker_id} serves {where}; Ctrl-C stops it after running handlers")
    if not session.quiet:
        log_to_stderr(logging.WARNING, "%(message)s")
    several = SeveralWorkers(workers, max_messages=max_messages, max_mib=max_mib, parent=parent)
    with _served(session, workers, metrics_port, metrics_host), _graceful(session, several) as stopping:
        if until_empty:
            several.run_until_empty(lambda: bool(stopping))
        else:
            several.run(lambda: bool(stopping), SystemClock().sleep)
    counts = several.stats()
    if report:
        Path(report).write_text(json.dumps(counts))
    ids = {worker.queue.name: worker.queue.worker_id for worker in workers}
    name, worker_id = next(iter(ids.items()))
    named = {"queue": name, "worker": worker_id} if len(ids) == 1 else {"queues": [*ids], "workers": [*ids.values()]}
    if parent is None:
        session.done(
            named | counts, ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "nothing"
        )
    if several.is_worn and not stopping:
        raise typer.Exit(RECYCLED)


def _defined(session: Session, modules: list[str]) -> dict[str, Definition]:
    """The queues that are to be worked on, by the module that defines each; without modules, all of the project.

    Raises:
        InvalidRequest: one cannot be worked on, or the URL names another one.
    """
    found: dict[str, Definition] = {}
    for module in modules or find_all():
        definition = load(module)
        if definition.function is None:
            if modules:
                raise InvalidRequest(f"{module} has no handler; decorate a function with @queue.handler")
            session.note(f"{definition.name} is left out: {module} has no handler")
        elif definition.settings.engine == "spark" and not modules:
            session.note(f"{definition.name} is left out: its messages run on Spark")
        elif definition.name in [one.name for one in found.values()]:
            raise InvalidRequest(f"{module} defines the queue {definition.name}, which another module does, too")
        else:
            found[module] = definition
    if not found:
        raise InvalidRequest("no module of the package queues has a queue with a handler that runs here")
    if session.named and [one.name for one in found.values()] != [session.named]:
        names = ", ".join(one.name for one in found.values())
        where = modules[0] if len(modules) == 1 else "the project" if not modules else "the modules"
        defines = "defines" if len(modules) < 2 else "define"
        raise InvalidRequest(f"--url names the queue {session.named}, but {where} {defines} {names}")
    return found


@contextmanager
def _served(session: Session, workers: list[Worker], port: int | None, host: str | None) -> Iterator[None]:
    """Raises InvalidRequest if metrics cannot be served there; no worker has begun by then."""
    if port is None:
        yield
        return
    # Not above: a server is for those who ask for it.
    from s3queue.worker.metrics import HOST, MetricsServer

    with MetricsServer(workers, port=port, host=host or HOST) as server:
        session.note(f"metrics at {server.url}")
        yield


@contextmanager
def _graceful(session: Session, worker: SeveralWorkers) -> Any:
    """The first signal lets running handlers finish; the second stops at once, and their leases run out."""
    stopping: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stopping:
            raise KeyboardInterrupt
        stopping.append(number)
        session.note("waiting for running handlers; Ctrl-C again stops at once")

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
        worker.stop()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _tell(session: Session, fields: Mapping[str, Any]) -> None:
    error = f": {fields['error_type']}: {fields['error']}" if fields.get("error") else ""
    word = str(fields["event"]).removeprefix("message.")
    session.note(clean(f"{word:<10}{fields['path']}, attempt {fields.get('attempt', 0)}{error}"))


@command(
    program,
    "sweep orders",
    "sweep orders --module queues.orders",
    "sweep orders --defaults --json",
    panel=PANEL,
)
def sweep(
    ctx: typer.Context,
    queue: QueueName = None,
    module: Annotated[
        str | None, typer.Option("--module", help="Where the queue is defined; default: queues.QUEUE.")
    ] = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Use default settings and queue.json: there is no definition.")
    ] = False,
    function: Annotated[
        str | None, typer.Option("--function", help="The worker function; default: the one that S3 notifies.")
    ] = None,
) -> None:
    """Sweep once: expired leases, due retries and delayed messages, lost events. Safe beside any other sweeper.

    It must know the queue's max_attempts: with another value it would bury messages too early or too late.
    JSON: queue, endings, due, orphans, races, removed, scheduled, corrupt, requests, complete, function.
    """
    session = Session.of(ctx)
    named = session.queue(queue)
    definition = _definition(named.name, module)
    is_told = "max_attempts" in named.overrides() or named.defined != QueueSettings()
    settings = _settings(named, is_told, definition, defaults)
    known = function or worker_function(session, named.name)
    swept = session.queue(queue, settings=settings)
    # Without a worker function nothing is handed over: pull workers find due messages by the reminders.
    dispatch = dispatcher(session, known) if known else None
    schedules = definition.schedules if definition else None
    sweeper = Sweeper(queue=swept, dispatch=dispatch, schedules=schedules, counts_hour=True)
    report = sweeper.sweep(seconds=300.0, requests=100_000)
    document = report.to_json() | {"function": known}
    endings = ", ".join(f"{count} {ending}" for ending, count in report.endings.items()) or "none"
    handed = f"handed to {known}" if known else "left to pull workers: the worker function is unknown"
    shown = facts(
        [
            ("expired leases", endings),
            ("due", f"{report.due} ({handed})"),
            ("rescued", f"{report.orphans} whose event was lost or late"),
            ("removed", report.removed),
            ("scheduled", report.scheduled),
            ("requests", report.requests),
            ("complete", "yes" if report.complete else "no: sweep again"),
            *(("corrupt", f"{key}: {why}") for key, why in report.corrupt.items()),
        ]
    )
    session.answer(document, shown)
    if report.corrupt:
        raise typer.Exit(1)


def _definition(queue: str, module: str | None) -> Definition | None:
    """Raises InvalidRequest if the module defines another queue."""
    definition = load(module) if module else find(queue)
    if definition and definition.name != queue:
        raise InvalidRequest(f"{module} defines the queue {definition.name}, not {queue}")
    return definition


def _settings(queue: Queue, is_told: bool, definition: Definition | None, defaults: bool) -> QueueSettings:
    """The settings that the queue was defined with.

    Raises:
        InvalidRequest: they are unknown.
    """
    if definition:
        return definition.settings
    if defaults or is_told:
        return queue.defined
    raise InvalidRequest(
        f"max_attempts of {queue.name} is unknown: give its --module, or --defaults if it has the default "
        f"{QueueSettings().max_attempts}, or s3queue configure {queue.name} max_attempts=N"
    )
