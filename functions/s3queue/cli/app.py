"""The whole command: every module registers its own commands."""

from __future__ import annotations

from typing import Annotated

import typer

from s3queue import __version__

from .command import program
from .commands import (
    act,
    archive,
    breaker,
    bulk,
    configure,
    dashboard,
    dead,
    dead_replay,
    estimate,
    flows,
    init,
    locks,
    partitions,
    presign,
    queues,
    replay,
    schedules,
    send,
    show,
    stats,
    tail,
    up,
    work,
    workers,
)
from .doctor import command as doctor

__all__ = ["program"]
#: Imported for what they register; `command.ORDER` says how the help lists it.
_REGISTERED = (
    *(queues, configure, breaker, send, presign, stats, show, tail, partitions, act, replay, dead, dead_replay),
    *(work, workers, locks, schedules, flows, archive, bulk, doctor, estimate, dashboard, init, up),
)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"s3queue {__version__}")
        raise typer.Exit


@program.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A message queue whose only server is an S3 bucket: the command for operators."""
