"""Output: tables for people, `--json` for scripts; answers go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from s3queue.errors import InvalidRequest

from .words import clean

#: Width of the output in a pipe or a file: wide enough that no path is folded.
UNWATCHED_WIDTH = 200
#: Width of an ordinary path: `messages/p200/` and a UUID.
PATH_WIDTH = 50
#: Width of a terminal that has room for a path and other columns.
WIDE = 110
#: Requests at the same time when a command deals with many objects.
PARALLEL = 16

T = TypeVar("T")
R = TypeVar("R")
#: Colours of verdicts, healths, states and events.
STYLES = {
    "ok": "green",
    "healthy": "green",
    "completed": "green",
    "fresh": "green",
    "warning": "yellow",
    "paused": "yellow",
    "unswept": "yellow",
    "waiting": "yellow",
    "stale": "yellow",
    "retry": "yellow",
    "problem": "bold red",
    "stuck": "bold red",
    "behind": "bold yellow",
    "failing": "red",
    "dead": "red",
    "cancelled": "dim",
    "corrupt": "bold red",
    "silent": "red",
    "unreadable": "red",
    "processing": "cyan",
    "held": "cyan",
    "idle": "dim",
    "skipped": "dim",
}


@dataclass(slots=True, kw_only=True)
class Output:
    """How this call writes its output."""

    json: bool = False
    quiet: bool = False

    def console(self) -> Console:
        return _console(sys.stdout)

    def answer(self, document: Any, *shown: RenderableType) -> None:
        """The answer: with `--json` the document, otherwise what people read."""
        if self.json:
            self.document(document)
            return
        console = self.console()
        for one in shown:
            # An empty table is not shown: the note that follows says more than its headings.
            if isinstance(one, Table) and one.columns and not one.row_count:
                continue
            # The terminal breaks a line of text: an address or a path that is broken here cannot be used.
            console.print(one, markup=False, highlight=False, soft_wrap=isinstance(one, (str, Text)))

    def document(self, document: Any) -> None:
        """One JSON document, in ASCII only, so that a terminal never gets a control sequence."""
        sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")

    def line(self, document: Any, *shown: RenderableType) -> None:
        """One of many answers that come one by one; with `--json`, one document per line."""
        if self.json:
            sys.stdout.write(json.dumps(document, default=str) + "\n")
        else:
            self.answer(document, *shown)
        sys.stdout.flush()

    def done(self, document: Any, sentence: str) -> None:
        """What was done. With `--quiet` nothing is printed; the exit code is enough."""
        if self.json:
            self.document(document)
        elif not self.quiet:
            self.console().print(clean(sentence), markup=False, highlight=False, soft_wrap=True)

    def note(self, sentence: str) -> None:
        """Information that is not part of the answer."""
        if not self.quiet:
            _console(sys.stderr).print(clean(sentence), style="dim", markup=False, highlight=False, soft_wrap=True)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before what cannot be undone.

        Raises:
            InvalidRequest: there is no terminal to ask. typer.Exit: the answer was no.
        """
        if yes:
            return
        if not sys.stdin.isatty():
            raise InvalidRequest(f"{question} This cannot be undone: add --yes, or try --dry-run first")
        if not typer.confirm(clean(question), err=True):
            self.note("nothing was changed")
            raise typer.Exit(1)

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Progress]:
        """A progress bar on stderr, if that is a terminal."""
        columns = (TextColumn(clean(what)), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        watched = sys.stderr.isatty() and not self.quiet
        bar = Progress(*columns, console=_console(sys.stderr), transient=True, disable=not watched)
        with bar:
            bar.add_task(what, total=total)
            yield bar

    def each(self, what: str, items: Sequence[T], deal: Any) -> Iterator[tuple[T, Any]]:
        """Call `deal` for many items in parallel, with a progress bar; the results come in order."""
        return self.each_in_turn(what, [[item] for item in items], deal)

    def each_in_turn(self, what: str, rows: Sequence[Sequence[T]], deal: Any) -> Iterator[tuple[T, Any]]:
        """Call `deal` for many items, row beside row; those of one row one after the other."""
        with self.progress(what, sum(map(len, rows))) as bar, ThreadPoolExecutor(PARALLEL) as pool:

            def deal_with(row: Sequence[T]) -> list[tuple[T, Any]]:
                done = []
                for item in row:
                    done.append((item, deal(item)))
                    bar.advance(bar.task_ids[0])
                return done

            for done in pool.map(deal_with, rows):
                yield from done


def _console(file: IO[str]) -> Console:
    width = None if file.isatty() or "COLUMNS" in os.environ else UNWATCHED_WIDTH
    return Console(file=file, width=width, highlight=False, emoji=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> Table:
    """Rows under headings. A heading that starts with `>` aligns right; with `~`, the column may fold; with `=`, it
    folds only if there is no room: it holds paths, which people copy.
    """
    filled = [[cell if isinstance(cell, Text) else words(cell) for cell in row] for row in rows]
    made = Table(
        box=box.SIMPLE_HEAD, title=clean(title) or None, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0)
    )
    for index, column in enumerate(columns):
        longest = max((row[index].cell_len for row in filled), default=0)
        made.add_column(
            Text(column.lstrip(">~=")),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
            no_wrap=column[0] not in "~=" or (column[0] == "=" and is_wide() and longest <= PATH_WIDTH),
        )
    for row in filled:
        made.add_row(*row)
    return made


def is_wide() -> bool:
    """Whether a line has room for a path, or a reason, beside other columns."""
    return shutil.get_terminal_size().columns >= WIDE


def facts(pairs: Iterable[tuple[str, Any]]) -> Table:
    """Names and values, one pair per line, without headings."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(Text(name), value if isinstance(value, Text) else words(value))
    return made


def words(value: Any) -> Text:
    """A cell; states and verdicts have their colour. Never markup: stored text must not style itself."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    # A line break in stored text is a space in a cell, not a visible `\\n`.
    text = f"{value:,}" if is_number else clean(" ".join(str(value).splitlines()))
    return Text(text, style=STYLES.get(text, ""))
