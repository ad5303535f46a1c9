"""Accounts: what became of every message, from its record; and what the world outside the queue saw of it."""

from __future__ import annotations

import email
import io
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from rich.table import Table
from rich.text import Text

from s3queue.documents.record import Record
from s3queue.queue import Queue
from s3queue.store import ObjectInfo, listing

from .messages import Sent, recipients
from .receiver import Receiver

#: The longer side that functions/queues/thumbnails.py promises.
THUMBNAIL_SIDE = 256
#: Of why a message died: enough to know, and not Spark's whole advice.
REASON_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to be true, and what was found."""

    said: str
    is_true: bool


class Accounts:
    """Every message that was sent, beside its record."""

    def __init__(self, queues: dict[str, Queue], sent: Sequence[Sent]) -> None:
        self._queues, self._sent = queues, sent
        with ThreadPoolExecutor(8) as readers:
            records = readers.map(lambda one: queues[one.queue].outcomes.read(one.path), sent)
            self.records: dict[str, Record | None] = {
                one.key: record for one, record in zip(sent, records, strict=True)
            }

    @property
    def missing(self) -> int:
        return sum(one.count - sum(self._ended(one)) for one in self._sent)

    @property
    def is_balanced(self) -> bool:
        """Every message has an outcome, and it is the one that it had to have."""
        return all(self._ended(one) == self._expected(one) for one in self._sent)

    def totals(self) -> tuple[int, int, int]:
        """Enqueued, completed, dead."""
        ended = [self._ended(one) for one in self._sent]
        return sum(one.count for one in self._sent), sum(done for done, _ in ended), sum(dead for _, dead in ended)

    def table(self) -> Table:
        table = Table("messages", box=None, padding=(0, 1, 0, 0))
        for heading in ("enqueued", "completed", "dead", "missing", "retried", "slowest"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("")
        kinds: dict[str, list[Sent]] = defaultdict(list)
        for one in self._sent:
            kinds[one.kind].append(one)
        for kind, members in sorted(kinds.items()):
            self._row(table, kind, members)
        self._row(table, "all", self._sent, style="bold")
        return table

    def _row(self, table: Table, kind: str, members: Sequence[Sent], style: str = "") -> None:
        enqueued = sum(one.count for one in members)
        completed = sum(self._ended(one)[0] for one in members)
        dead = sum(self._ended(one)[1] for one in members)
        records = [(one, record) for one in members if (record := self.records[one.key])]
        took = [record.finished_at - (one.due_at or record.generation.put_at) for one, record in records]
        # S3 tells time in whole seconds, so a short while may come out as less than nothing.
        seconds = [max(0.0, one.total_seconds()) for one in took]
        retried = sum(record.attempt > 1 for _, record in records)
        is_right = all(self._ended(one) == self._expected(one) for one in members)
        missing = enqueued - completed - dead
        table.add_row(
            kind,
            f"{enqueued:,}",
            f"{completed:,}",
            Text(f"{dead:,}", "red" if dead else ""),
            Text(f"{missing:,}", "bold red" if missing else ""),
            f"{retried:,}",
            f"{max(seconds):.0f} s" if seconds else "",
            Text("✓", "green") if is_right else Text("✗", "bold red"),
            style=style,
        )

    def _ended(self, one: Sent) -> tuple[int, int]:
        """Completed and dead, line by line."""
        record = self.records[one.key]
        if record is None:
            return 0, 0
        if record.lines:
            return int(record.lines["completed"]), record.dead_lines
        return (one.count, 0) if record.outcome == "completed" else (0, one.count)

    @staticmethod
    def _expected(one: Sent) -> tuple[int, int]:
        return (one.count, 0) if one.ending == "completed" else (0, one.count)

    def checks(self, outbox: Path, receiver: Receiver, killed: Sent) -> Iterator[Check]:
        """What can be seen without asking the queue."""
        yield self._outbox(outbox)
        yield self._webhooks(receiver)
        yield self._thumbnails()
        yield self._delays()
        yield self._dead_letters()
        yield self._recovery(killed)
        yield self._nothing_left()

    def _outbox(self, outbox: Path) -> Check:
        found = Counter(str(email.message_from_bytes(file.read_bytes())["To"]) for file in outbox.glob("*.eml"))
        mails = [one for one in self._sent if one.queue == "emails" and one.ending == "completed"]
        wanted = Counter(to for one in mails for to in recipients(one))
        return Check(
            f"the outbox holds {found.total():,} mails, one for each of {len(wanted):,} recipients",
            found == wanted,
        )

    def _webhooks(self, receiver: Receiver) -> Check:
        wanted = sum(one.queue == "webhooks" for one in self._sent)
        delivered = receiver.delivered()
        said = f"the endpoint accepted {len(delivered)} webhooks, having sent {receiver.refused()} away with 503 or 429"
        return Check(
            f"{said}; {receiver.forged or 'no'} signature was wrong", len(delivered) == wanted and not receiver.forged
        )

    def _thumbnails(self) -> Check:
        from PIL import Image

        queue = self._queues["thumbnails"]
        sizes = []
        for entry in self._entries(queue, "results"):
            found = queue.store.open(entry.key)
            assert found
            with Image.open(io.BytesIO(found.read())) as picture:
                sizes.append(max(picture.size))
        wanted = sum(one.queue == "thumbnails" for one in self._sent)
        notified = sum(one.kind == "emails, sent by thumbnails" for one in self._sent)
        return Check(
            f"{len(sizes)} thumbnails are in the bucket, each {THUMBNAIL_SIDE} pixels long, and {notified} have sent "
            "an email",
            len(sizes) == wanted == notified and all(size == THUMBNAIL_SIDE for size in sizes),
        )

    def _delays(self) -> Check:
        early = [
            one
            for one in self._sent
            if one.due_at and (record := self.records[one.key]) and record.attempts[0].started_at < one.due_at
        ]
        return Check(f"{len(early) or 'no'} delayed email started before its time", not early)

    def _dead_letters(self) -> Check:
        dead = [one for one in self._sent if one.ending == "dead"]
        kept = 0
        for one in dead:
            queue = self._queues[one.queue]
            letter = queue.store.open(queue.keys.dead(one.path))
            kept += bool(letter and letter.read() == one.body)
        failures = [record.failure for one in dead if (record := self.records[one.key]) and record.failure]
        reasons = {shorten(failure.message, REASON_CHARACTERS, placeholder=" …") for failure in failures}
        return Check(f"{kept} dead letters lie in dead/, unchanged: {'; '.join(sorted(reasons))}", kept == len(dead))

    def _recovery(self, killed: Sent) -> Check:
        record = self.records[killed.key]
        failures = [attempt.failure.type for attempt in record.attempts if attempt.failure] if record else []
        return Check(
            "the message of the killed worker was finished by another",
            bool(record and record.outcome == "completed" and failures and failures[0] == "LeaseExpired"),
        )

    def _nothing_left(self) -> Check:
        kinds = ("messages", "delayed", "leases")
        left = sum(len(self._entries(queue, kind)) for queue in self._queues.values() for kind in kinds)
        return Check(f"{left or 'no'} message or lease is left in the bucket", not left)

    @staticmethod
    def _entries(queue: Queue, kind: str) -> list[ObjectInfo]:
        return [entry for page in listing(queue.store, queue.keys.prefix(kind)) for entry in page.objects]
