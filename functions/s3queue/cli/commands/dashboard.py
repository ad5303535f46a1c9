"""dashboard: the page and the REST API on this machine, with the operator's own credentials."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from s3queue.cli.command import command, program
from s3queue.cli.session import Session
from s3queue.errors import InvalidRequest

PANEL = "Operate"
#: Without --port, the first free port from here on.
PORT = 8765
TRIES = 10


@command(program, "dashboard", "dashboard --port 9000 --no-open", panel=PANEL)
def dashboard(
    ctx: typer.Context,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1.")] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every change, and show no payloads.")] = False,
) -> None:
    """Serve the dashboard and its REST API on 127.0.0.1, until Ctrl-C. The address contains a key that is required.

    JSON: url, bucket, role.
    """
    session = Session.of(ctx)
    store = session.store()
    try:
        # Imported here: no other command needs Powertools and pydantic.
        from s3queue.dashboard.server import Server
    except ModuleNotFoundError as missing:
        raise InvalidRequest(f"the dashboard needs {missing.name}: pip install 's3queue[cli,dashboard]'") from None
    server = None
    for candidate in [port] if port is not None else [*range(PORT, PORT + TRIES), 0]:
        try:
            server = Server(store, port=candidate, role="reader" if read_only else "operator")
            break
        except OSError as error:
            taken = f"port {candidate} cannot be used: {error.strerror}; choose another with --port"
    if server is None:
        raise InvalidRequest(taken)
    with server:
        told = {"url": server.url, "bucket": store.url, "role": server.app.role}
        session.line(told, Text(f"{store.url} at {server.url}"))
        does = "reads" if read_only else "acts"
        session.note(f"whoever has this address {does} with your credentials; Ctrl-C ends it")
        if open_browser:
            server.open_browser()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            session.note("stopped")
