"""Progress: where the messages of each queue are, second by second, from LISTs alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, fields, replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from s3queue.errors import QueueError
from s3queue.queue import Queue

from .messages import Sent

LOOK_SECONDS = 1.0
#: Where no one watches a terminal, a line this often is enough.
LINE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Row:
    """How many messages are where."""

    pending: int = 0
    delayed: int = 0
    processing: int = 0
    waiting: int = 0
    completed: int = 0
    dead: int = 0

    def __add__(self, other: Row) -> Row:
        return Row(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Row) -> Row:
        # Counted one after the other, so a message may have moved in between.
        return Row(*(max(0, mine - theirs) for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def ended(self) -> int:
        return self.completed + self.dead


class Watch:
    """Looks at the queues in a thread of its own and shows what it saw."""

    def __init__(self, console: Console, queues: dict[str, Queue], sent: Sequence[Sent]) -> None:
        self._console, self._queues = console, queues
        self._total = sum(one.count + one.sends for one in sent)
        self._batches = [one for one in sent if one.count > 1]
        self._started = time.monotonic()
        self._said = 0.0
        self._over = threading.Event()
        self._seen = threading.Condition()
        self._rows: dict[str, Row] = {}

    @contextmanager
    def showing(self) -> Iterator[None]:
        """A live table until the end of the block; printing goes above it."""
        with Live(console=self._console, auto_refresh=False) if self._console.is_terminal else nullcontext() as live:
            thread = threading.Thread(target=self._look_on, args=(live,), daemon=True)
            thread.start()
            try:
                yield
            finally:
                self._over.set()
                thread.join()

    def wait_until_all_ended(self, seconds: float) -> bool:
        """Whether every message has an outcome; False if there was no change for so long."""
        before, patience = -1, time.monotonic() + seconds
        with self._seen:
            while (ended := self._ended()) < self._total:
                if ended != before:
                    before, patience = ended, time.monotonic() + seconds
                elif time.monotonic() > patience:
                    return False
                self._seen.wait(LOOK_SECONDS)
        return True

    def _ended(self) -> int:
        return sum(row.ended for row in self._rows.values())

    def _look_on(self, live: Live | None) -> None:
        is_last = False
        while not is_last:
            # Once more after the end, so that what stays on the screen is how it ended.
            is_last = self._over.is_set()
            try:
                rows = dict(self._look())
            except QueueError as error:
                self._console.print(f"[dim]one look failed: {error}[/]")
            else:
                with self._seen:
                    self._rows = rows
                    self._seen.notify_all()
                self._show(live)
            self._over.wait(LOOK_SECONDS)

    def _look(self) -> Iterator[tuple[str, Row]]:
        for name, queue in self._queues.items():
            stats = queue.stats()
            row = Row(stats.pending, stats.delayed, stats.processing, stats.failed, stats.completed, stats.dead)
            for batch in self._batches:
                if batch.queue == name:
                    objects, lines = self._lines(queue, batch)
                    # A batch is one object and many messages: it gets a row of its own.
                    row -= objects
                    yield f"{name} in a batch", lines
            yield name, row

    def _lines(self, queue: Queue, batch: Sent) -> tuple[Row, Row]:
        """The batch as the queue counts it, and line by line."""
        try:
            status = queue.status(batch.path)
        except QueueError:
            return Row(), Row()
        if status.state in ("completed", "dead"):
            dead = status.record.dead_lines if status.record else 0
            # Its name does not say how many lines it has: the queue counts its record as one.
            return Row(completed=1, dead=dead), Row(completed=batch.count - dead, dead=dead)
        if status.state == "pending":
            return Row(pending=1), Row(pending=batch.count)
        # The lease tells how far it was when it was last written.
        done = len(status.lease.lines.done) if status.lease and status.lease.lines else 0
        where = "waiting" if status.state == "waiting" else "processing"
        return replace(Row(), **{where: 1}), replace(Row(completed=done), **{where: batch.count - done})

    def _show(self, live: Live | None) -> None:
        elapsed = time.monotonic() - self._started
        if live:
            live.update(self._table(elapsed), refresh=True)
        elif elapsed - self._said >= LINE_SECONDS or self._over.is_set():
            self._said = elapsed
            total = sum(self._rows.values(), Row())
            self._console.print(
                f"{elapsed:4.0f} s  pending {total.pending:4}  delayed {total.delayed:3}  processing "
                f"{total.processing:4}  waiting {total.waiting:3}  completed {total.completed:5}  dead {total.dead}",
                soft_wrap=True,
            )

    def _table(self, elapsed: float) -> RenderableType:
        table = Table("queue", box=None, pad_edge=False)
        for field in fields(Row):
            table.add_column(field.name, justify="right")
        styles = ("", "", "yellow", "yellow", "green", "red")
        for name, row in sorted(self._rows.items()):
            cells = zip(astuple(row), styles, strict=True)
            table.add_row(name, *(Text(f"{count:,}", style if count else "dim") for count, style in cells))
        ended = self._ended()
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=self._total, completed=ended, width=40),
            f"{ended:,} of {self._total:,}",
            f"{elapsed:.0f} s",
        )
        return Group("", table, "", bar)
