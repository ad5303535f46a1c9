"""dashboard: the page on this machine, over a bucket or over a deployed API, with the operator's own credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from s3queue.cli.command import command, program
from s3queue.cli.session import Session
from s3queue.errors import InvalidRequest
from s3queue.settings import aws_region

if TYPE_CHECKING:
    from s3queue.dashboard.resolver import Resolver

PANEL = "Operate"
#: Without --port, the first free port from here on.
PORT = 8765
TRIES = 10


@command(
    program,
    "dashboard",
    "dashboard --port 9000 --no-open",
    "dashboard --api https://abc.lambda-url.eu-west-1.on.aws/",
    panel=PANEL,
)
def dashboard(
    ctx: typer.Context,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1.")] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every change, and show no payloads.")] = False,
    api: Annotated[
        str | None,
        typer.Option("--api", help="A deployed API: the stack's output Url or ReaderUrl.", metavar="URL"),
    ] = None,
) -> None:
    """Serve the dashboard and its REST API on 127.0.0.1, until Ctrl-C. The address contains a key that is required.

    With --api, requests go to the deployed API, signed with your credentials; the bucket is not asked.

    JSON: url, role, and bucket or api.
    """
    session = Session.of(ctx)
    if api and session.url:
        raise InvalidRequest("--api and --url name two sources; give one of them")
    try:
        # Imported here: no other command needs Powertools and pydantic.
        from s3queue.dashboard.server import Server
    except ModuleNotFoundError as missing:
        raise InvalidRequest(f"the dashboard needs {missing.name}: pip install 's3queue[cli,dashboard]'") from None
    app = _deployed(session, api, read_only) if api else _of_bucket(session, read_only)
    server = None
    for candidate in [port] if port is not None else [*range(PORT, PORT + TRIES), 0]:
        try:
            server = Server(app, port=candidate)
            break
        except OSError as error:
            taken = f"port {candidate} cannot be used: {error.strerror}; choose another with --port"
    if server is None:
        raise InvalidRequest(taken)
    with server:
        shown = api or session.store().url
        told = {"url": server.url, "api" if api else "bucket": shown, "role": app.role}
        session.line(told, Text(f"{shown} at {server.url}"))
        does = "reads" if app.role == "reader" else "acts"
        session.note(f"whoever has this address {does} with your credentials; Ctrl-C ends it")
        if open_browser:
            server.open_browser()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            session.note("stopped")


def _of_bucket(session: Session, read_only: bool) -> Resolver:
    from s3queue.dashboard.api import build
    from s3queue.dashboard.console import Console

    # Another server than AWS has no console.
    console = Console(region="" if session.endpoint else session.region or aws_region() or "")
    return build(session.store(), role="reader" if read_only else "operator", console=console)


def _deployed(session: Session, url: str, read_only: bool) -> Resolver:
    """Asked once before it is shown: a wrong address or a missing permission is said here, not in the page."""
    from s3queue.dashboard.signed_api import SignedApi

    app = SignedApi(url, region=session.region, role="reader" if read_only else "operator")
    app.check()
    return app
