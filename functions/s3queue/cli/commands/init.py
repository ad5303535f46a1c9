"""init: a project of one's own with one queue, ready to test and to deploy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from s3queue.cli.command import command, program
from s3queue.cli.project import check_name, name_of, write_project
from s3queue.cli.session import Session
from s3queue.errors import InvalidRequest

PANEL = "Start"


@command(program, "init shop", "init --into .", "init shop --into services/shop --json", panel=PANEL)
def init(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(help="The project and its folder; also the name of its stack.")] = None,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="FOLDER", help="Add it to a project that is there.")
    ] = None,
) -> None:
    """Write a small project: one queue with model and handler, its test, a CDK app, a Dockerfile, a README.

    Nothing is overwritten: files that are there are named, and stay as they are. No bucket is needed.

    JSON: name, folder, written, kept.
    """
    session = Session.of(ctx)
    if name is None and into is None:
        raise InvalidRequest("give the project a name (s3queue init shop), or the folder of one: --into .")
    if into is None:
        assert name is not None
        folder = Path(check_name(name))
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidRequest(f"{folder} is there already: add to it with --into {folder}, or choose another name")
    else:
        folder = into
        if folder.exists() and not folder.is_dir():
            raise InvalidRequest(f"--into {folder}: that is a file, not a folder")
    chosen = name or name_of(folder)
    written, kept = write_project(folder, chosen)
    document = {"name": chosen, "folder": str(folder), "written": written, "kept": kept}
    if kept and not session.json:
        session.note(f"there already, and left as they are: {', '.join(kept)}")
        if "app.py" in kept:
            session.note(f'in your own CDK app: from s3queue_cdk import S3Queues; S3Queues(app, "{chosen}")')
    where = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    rest = "; README.md has the rest" if "README.md" in written else ""
    session.done(document, f"{chosen}: wrote {', '.join(written) or 'nothing'}. Next: {where}pytest{rest}")
