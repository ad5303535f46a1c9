"""What all commands share: global options anywhere on the line, examples in the help, errors in one line."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from s3queue.errors import AccessDenied, InvalidRequest, NotFound, QueueError, QueueNotFound, Unavailable
from s3queue.errors import MessageNotFound as NoSuchMessage

from .session import Session
from .words import one_line

OK, BAD, MISTAKE, UNREACHABLE = 0, 1, 2, 3
_PANEL = "Global options"
#: The order of the commands in the help; a panel comes where its first command does.
ORDER = (
    *("queues", "create", "configure", "set-concurrency", "pause", "resume", "breaker", "purge", "cleanup", "delete"),
    *("send", "presign", "size", "stats", "peek", "show", "list", "partitions", "tail", "cancel", "retry", "release"),
    *(
        "replay",
        "dead",
        "work",
        "workers",
        "runs",
        "locks",
        "sweep",
        "dashboard",
        "doctor",
        "estimate",
        "init",
        "up",
        "down",
    ),
)
F = TypeVar("F", bound=Callable[..., Any])


def exit_code(error: QueueError) -> int:
    """1: a problem was found, or nothing matched. 2: the call is wrong. 3: the store cannot be reached or refuses."""
    if isinstance(error, (NoSuchMessage, QueueNotFound)):
        return BAD
    if isinstance(error, (AccessDenied, NotFound, Unavailable)):
        return UNREACHABLE
    return MISTAKE if isinstance(error, InvalidRequest) else BAD


def _keep(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    if value not in (None, False):
        setattr(Session.of(ctx), str(param.name), value)
    return value


def _option(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, callback=_keep, expose_value=False, rich_help_panel=_PANEL, **more)


def _global(
    url: Annotated[
        str | None,
        _option("--url", help="s3://bucket or s3://bucket/queue; default: S3QUEUE_URL.", metavar="URL"),
    ] = None,
    endpoint_url: Annotated[
        str | None,
        _option("--endpoint-url", help="Another S3 server than AWS; default: AWS_ENDPOINT_URL.", metavar="URL"),
    ] = None,
    region: Annotated[str | None, _option("--region", help="AWS region; default: AWS_REGION.")] = None,
    json: Annotated[bool, _option("--json", help="Answer in JSON, for scripts.")] = False,
    quiet: Annotated[bool, _option("--quiet", "-q", help="Only the answer: no notes, no progress.")] = False,
    debug: Annotated[bool, _option("--debug", help="Show the trace of an error.")] = False,
) -> None:
    """Only for its parameters, which typer turns into the options that every command shares."""


def _global_options() -> list[Any]:
    carrier = typer.Typer(add_completion=False)
    carrier.command()(_global)
    return list(typer.main.get_command(carrier).params)


class Command(TyperCommand):
    """A command that also accepts the global options."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params = [*self.params, *_global_options()]


class Group(TyperGroup):
    """Several commands under one word."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params = [*self.params, *_global_options()]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            # `s3queue errors`: of the commands under a word, nobody remembers the word at night.
            homes = [
                name
                for name, group in sorted(self.commands.items())
                if isinstance(group, Group) and args and args[0] in group.commands
            ]
            if homes:
                meant = " or ".join(f"'{name} {args[0]}'" for name in homes)
                error.message = f"No such command '{args[0]}'. Did you mean {meant}?"
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)


class Program(Group):
    """The whole command; here errors become one line and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        known = super().list_commands(ctx)
        return sorted(known, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        session = Session()
        try:
            ended = super().main(
                args,
                prog_name="s3queue",
                complete_var=complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                obj=session,
                **extra,
            )
        except QueueError as error:
            ended = _said(session, f"s3queue: {error}", exit_code(error))
        except typer.TyperException as error:
            path = getattr(getattr(error, "ctx", None), "command_path", "s3queue")
            ended = _said(session, f"{path}: {error.format_message()} (-h shows the usage)", error.exit_code)
        except typer.Abort:
            ended = _said(session, "s3queue: stopped", 130)
        sys.exit(ended if isinstance(ended, int) else OK)


def _said(session: Session, sentence: str, code: int) -> int:
    if session.debug:
        traceback.print_exc()
    print(one_line(sentence), file=sys.stderr)
    return code


def group(help: str, **options: Any) -> typer.Typer:
    return typer.Typer(cls=Group, help=help, rich_markup_mode="rich", **options)


program = typer.Typer(
    cls=Program,
    name="s3queue",
    help="A message queue whose only server is an S3 bucket: the command for operators.",
    epilog=escape(
        "Examples:\n\n"
        "  export S3QUEUE_URL=s3://my-bucket\n"
        "  s3queue queues\n"
        "  s3queue send orders '{\"id\": 17}'\n"
        "  s3queue stats orders --watch\n"
        "  s3queue doctor orders\n\n"
        "Exit codes: 0 done; 1 a problem was found, or nothing matched; 2 the call is wrong; "
        "3 the store cannot be reached or refuses."
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def command(within: typer.Typer, *examples: str, name: str | None = None, panel: str | None = None) -> Callable[[F], F]:
    """Register a function as a command whose help ends with these examples."""
    lines = [example if "| s3queue" in example else f"s3queue {example}" for example in examples]
    # The first line break keeps the indentation: the margin of a docstring is counted from its second line on.
    epilog = escape("\nExamples:\n\n" + "\n".join(f"  {line}" for line in lines))

    def register(function: F) -> F:
        within.command(name, cls=Command, epilog=epilog, rich_help_panel=panel)(function)
        return function

    return register
