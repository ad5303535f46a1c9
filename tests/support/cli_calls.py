"""Calls of the command in this process: arguments in, exit code and output out."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from s3queue import Queue, Worker, connect
from s3queue.cli.app import program

COMMAND = typer.main.get_command(program)


@dataclass
class Ran:
    """What one call answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """Calls the command with `--url` set; a call that is expected to go well fails the test if it does not."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(
        self, *args: str, code: int | None = 0, stdin: str | bytes | None = None, url: str | None = None, **more: str
    ) -> Ran:
        # Wide, so that no cell is folded and texts can be looked for.
        env = {"S3QUEUE_URL": url or self.url, "COLUMNS": "300", "NO_COLOR": "1", **more}
        # Not `invoke`, which puts the whole command together again for every call.
        with CliRunner().isolation(input=stdin, env=env) as (out, err, _):
            with pytest.raises(SystemExit) as ended:
                COMMAND.main(list(args))
            sys.stdout.flush()
            sys.stderr.flush()
            ran = Ran(int(ended.value.code or 0), out.getvalue().decode(), err.getvalue().decode())
        assert code is None or ran.code == code, f"{args} ended with {ran.code}: {ran.out}{ran.err}"
        return ran

    def queue(self, name: str = "orders", **options: Any) -> Queue:
        return connect(f"{self.url}/{name}", **options)

    def stored_keys(self, prefix: str = "") -> list[str]:
        return [entry.key for entry in self.queue().store.list(prefix).objects]

    def work(self, handler: Any, **settings: Any) -> Queue:
        """Run what there is through a handler, without waiting for retries."""
        from s3queue import QueueSettings

        queue = self.queue(settings=QueueSettings.of(**settings))
        Worker(queue, handler, concurrency=1, sweep=False).run_until_empty()
        return queue

    def dies(self, body: Any, error: Exception, **options: Any) -> str:
        """Send a message that dies of this error; returns its path."""
        path = self.queue().enqueue(body, **options)

        def fail(_: bytes) -> None:
            raise error

        self.work(fail, max_attempts=1)
        return path
