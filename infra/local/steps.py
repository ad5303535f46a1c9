"""Long steps, shown as they go: a spinner with the seconds, then one line that stays."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from .processes import end_group

#: How much of a log explains a failure.
TAIL_LINES = 25
_RESOURCES = re.compile(r"\|\s*(\d+/\d+)\s*\|.*\|\s*(AWS::\S+|Custom::\S+)\s*\|")


class StepFailed(Exception):
    """A step did not end well. `log` has all of what it said, `tail` the last lines."""

    def __init__(self, what: str, *, log: Path, tail: str) -> None:
        super().__init__(f"{what}\n{tail}\n\nAll of it: {log}")
        self.what, self.log, self.tail = what, log, tail


class Step:
    def __init__(self, title: str, status: Status | None) -> None:
        self.title, self._status, self._started = title, status, time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def show(self, detail: str = "") -> None:
        if self._status:
            self._status.update(f"{escape(self.title)} [dim]{self.seconds:.0f} s {escape(detail[:60])}[/]")


class Steps:
    """Prints to a person, or line by line to a log that nobody watches."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        if self.console.is_terminal:
            with self.console.status(escape(title)) as status:
                step = Step(title, status)
                yield from self._finish(step)
        else:
            yield from self._finish(Step(title, None))

    def _finish(self, step: Step) -> Iterator[Step]:
        try:
            yield step
        except BaseException:
            self.console.print(f"[red]✗[/] {escape(step.title)} [dim]{step.seconds:.1f} s[/]")
            raise
        self.console.print(f"[green]✓[/] {escape(step.title)} [dim]{step.seconds:.1f} s[/]")


def run(
    step: Step,
    command: Sequence[str | Path],
    *,
    log: Path,
    environment: Mapping[str, str],
    cwd: Path,
    timeout: float = 600,
    watch: Path | None = None,
) -> None:
    """Run a command to its end, its output in `log`; nothing that it started outlives this call.

    Raises:
        StepFailed: it failed or took too long; `watch` is another log whose errors belong to the explanation.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    seen = watch.stat().st_size if watch and watch.exists() else 0
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(map(str, command))}\n".encode())
        output.flush()
        began = output.tell()
        # A session of its own: Ctrl-C reaches us only, and its children end with it.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )
        try:
            while process.poll() is None and step.seconds < timeout:
                step.show(_last_line(log, began))
                time.sleep(0.1)
            ended = process.poll()
        finally:
            end_group(process.pid, grace=1)
    if ended != 0:
        what = f"{step.title}: " + (f"exit status {ended}" if ended else f"no end after {timeout:.0f} s")
        errors = [line for line in _text(watch, seen).splitlines() if " ERROR " in line] if watch else []
        said = [line for line in _text(log, began).splitlines() if line.strip()]
        raise StepFailed(what, log=log, tail="\n".join([*errors[-5:], *said[-TAIL_LINES:]]))


def _last_line(log: Path, since: int) -> str:
    lines = _text(log, since)[-2000:].splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    # CloudFormation's own lines are wide; what counts is how far it is.
    found = _RESOURCES.search(last)
    return f"{found[1]} {found[2]}" if found else last


def _text(log: Path | None, since: int) -> str:
    if log is None or not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(since)
        return file.read().decode(errors="replace")
