"""tail: the events of a queue as they happen, found by LISTs only; it shows what the LISTs cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich.text import Text

from s3queue.cli.arguments import For, QueueName
from s3queue.cli.command import command, program
from s3queue.cli.output import STYLES
from s3queue.cli.partition_events import PartitionEvents, finished_facts
from s3queue.cli.prices import dollars, per_hour
from s3queue.cli.session import Session
from s3queue.cli.words import age, clean, counted, duration
from s3queue.clock import SystemClock
from s3queue.costs.prices import requests_cost
from s3queue.documents.lease import Lease
from s3queue.documents.message import is_placeholder
from s3queue.documents.record import Record
from s3queue.encoding import format_instant
from s3queue.errors import CorruptState
from s3queue.keys import Keys
from s3queue.paths import is_partition, partition_of
from s3queue.queue import Queue
from s3queue.store import ObjectInfo, listing, open_state

PANEL = "Messages"
#: Pages of one kind of object that one poll reads at most: of very many events, only a sample is shown.
PAGES = 5
#: Records whose UUIDv7 name is older than this are not listed; records with other names are listed every time.
BEHIND = timedelta(hours=1)


@dataclass(slots=True)
class Watcher:
    """Compares the objects of one poll with those of the last one."""

    queue: Queue
    requests: Counter[str] = field(default_factory=Counter)
    is_bounded: bool = False
    _messages: dict[str, ObjectInfo] = field(default_factory=dict)
    _leases: dict[str, str] = field(default_factory=dict)
    _records: set[tuple[str, str]] = field(default_factory=set)
    _groups: set[str] = field(default_factory=set)
    _since: datetime | None = None
    _partitions: PartitionEvents = field(init=False)

    def __post_init__(self) -> None:
        self._partitions = PartitionEvents(self.queue, self.requests)

    def poll(self) -> list[dict[str, Any]]:
        """The events since the last poll; none at the first one."""
        store, keys = self.queue.store, self.queue.keys
        self.requests["list"] += 1
        root = store.list(keys.root, delimiter="/")
        kinds = keys.kinds(root.prefixes)
        first = self._since is None
        self._since = self._since or root.at
        events: list[dict[str, Any]] = []
        seen: dict[str, ObjectInfo] = {}
        for kind in ("messages", "delayed"):
            if kind in kinds:
                for entry in self._entries(keys.prefix(kind)):
                    path = keys.path(entry.key)
                    if path and not is_placeholder(entry):
                        seen[path] = entry
        leases = {}
        if "leases" in kinds:
            leases = {
                path: entry.etag
                for entry in self._entries(keys.prefix("leases"))
                if (path := keys.path_under("leases", entry.key))
            }
        events += self._enqueued(seen)
        if not first:
            for path in sorted(leases):
                if leases[path] != self._leases.get(path) and not is_partition(path):
                    events += self._leased(path)
            both = self._partitions.poll((self._messages, seen), (self._leases, leases), self._since, self._cursor())
            events += [self._event(event, path, at, **facts) for event, path, at, facts in both]
        events += self._finished(kinds, seen, first)
        self._messages, self._leases = seen, leases
        return [] if first else sorted(events, key=lambda event: event["at"])

    def _entries(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        page = None
        for page in listing(self.queue.store, prefix, after=after, pages=PAGES):
            self.requests["list"] += 1
            yield from page.objects
        self.is_bounded = self.is_bounded or bool(page and page.next_after)

    def _enqueued(self, seen: dict[str, ObjectInfo]) -> Iterator[dict[str, Any]]:
        for path, entry in seen.items():
            former = self._messages.get(path)
            if former is None or (former.etag, former.modified_at) != (entry.etag, entry.modified_at):
                yield self._event("message.enqueued", path, entry.modified_at, size=entry.size)

    def _leased(self, path: str) -> Iterator[dict[str, Any]]:
        self.requests["get"] += 1
        found = open_state(self.queue.store, self.queue.keys.lease(path))
        if found is None:
            return
        try:
            lease = Lease.read(found)
        except CorruptState:
            return
        facts: dict[str, Any] = {"attempt": lease.attempt, "worker": lease.owner}
        if lease.state == "waiting" and lease.failure:
            facts |= {"error_type": lease.failure.type, "error": lease.failure.message}
            facts |= {"retry_at": format_instant(lease.retry_at)} if lease.retry_at else {}
            yield self._event("message.retry", path, found.modified_at, **facts)
        elif lease.state == "waiting":
            yield self._event("message.released", path, found.modified_at, **facts)
        elif lease.state == "processing":
            yield self._event("message.claimed", path, found.modified_at, **facts)

    def _finished(self, kinds: set[str], seen: dict[str, ObjectInfo], first: bool) -> list[dict[str, Any]]:
        """New records, and messages that are gone: the records of some names are not in the listed range."""
        keys = self.queue.keys
        events: list[dict[str, Any]] = []
        fresh: set[str] = set()
        if "records" in kinds:
            for group in {"messages/", *self._groups_of(seen)}:
                prefix = keys.prefix("records") + group
                for entry in self._entries(prefix, after=prefix + self._cursor()):
                    path = keys.path_under("records", entry.key)
                    is_news = self._since and entry.modified_at >= self._since
                    if path and is_news and (path, entry.etag) not in self._records:
                        fresh.add(path)
        gone = {path for path in self._messages if path not in seen}
        for path in sorted(fresh | gone):
            if partition_of(path):
                is_known = self.is_bounded or self._partitions.is_told(path, self._messages[path].etag)
                events += [] if is_known or first else [self._gone(path)]
                continue
            events += self._outcome(path, is_gone=path in gone, first=first)
        return events

    def _groups_of(self, seen: dict[str, ObjectInfo]) -> set[str]:
        """Priorities and shards are prefixes, each with names in the order of time: one cursor for each."""
        self._groups |= {
            path.rpartition("/")[0] + "/" for path in seen if not (path.startswith("delayed/") or partition_of(path))
        }
        return self._groups

    def _cursor(self) -> str:
        behind = int(((self._since or self.queue.clock.now()) - BEHIND).timestamp() * 1000)
        digits = f"{behind:012x}"
        return f"{digits[:8]}-{digits[8:]}"

    def _outcome(self, path: str, *, is_gone: bool, first: bool) -> Iterator[dict[str, Any]]:
        self.requests["get"] += 1
        found = open_state(self.queue.store, self.queue.keys.record(path))
        record = None
        if found:
            try:
                record = Record.read(found)
            except CorruptState:
                record = None
        if record and found:
            if (path, found.etag) in self._records or self._since is None or found.modified_at < self._since:
                return
            self._records.add((path, found.etag))
            yield self._event(f"message.{record.outcome}", path, record.finished_at, **finished_facts(record))
        elif is_gone and not first:
            yield self._gone(path)

    def _gone(self, path: str) -> dict[str, Any]:
        return self._event(
            "message.gone", path, self.queue.clock.now(), note="no record: history is off, or it was purged"
        )

    def _event(self, event: str, path: str, at: datetime, **facts: Any) -> dict[str, Any]:
        return {"event": event, "queue": self.queue.name, "path": path, "at": format_instant(at)} | facts


@command(program, "tail orders", "tail orders --interval 10s", "tail orders --json | jq .path", panel=PANEL)
def tail(
    ctx: typer.Context,
    queue: QueueName = None,
    interval: Annotated[
        timedelta,
        typer.Option(
            "--interval", parser=duration, metavar="DURATION", show_default="2s", help="Time between two polls."
        ),
    ] = timedelta(seconds=2),
    stop_after: For = None,
) -> None:
    """Show events as they happen: enqueued, claimed, retry, completed, dead. It changes nothing, and shows its cost.

    Whoever holds a partition takes many messages at once: each is shown as claimed then. The journals of the last 20
    partitions in which something changed are listed at every poll; in others, a message that comes and goes between
    two polls is not shown.

    JSON, one document per line: event, queue, path, at, and if known attempt, worker, size, error_type, error,
    retry_at, took_seconds.
    """
    session = Session.of(ctx)
    watched = session.queue(queue)
    watcher = Watcher(watched)
    clock = SystemClock()
    watcher.poll()
    lists = watcher.requests["list"]
    session.note(
        f"polling every {age(interval)}: {counted(lists, 'LIST')} each now, about {per_hour(lists, interval)}, and a "
        "GET for each change; a message that comes and goes between two polls shows only its outcome; Ctrl-C ends it"
    )
    until = None if stop_after is None else clock.monotonic() + stop_after.total_seconds()
    try:
        while until is None or clock.monotonic() < until:
            clock.sleep(max(0.05, interval.total_seconds()))
            for event in watcher.poll():
                session.line(event, _line(event, watched.keys))
    finally:
        cost = requests_cost(lists=watcher.requests["list"], gets=watcher.requests["get"])
        session.note(f"{counted(sum(watcher.requests.values()), 'request')}, {dollars(cost)}")
        if watcher.is_bounded:
            session.note(f"some polls stopped after {PAGES} pages of one kind: not every event was shown")


def _line(event: dict[str, Any], keys: Keys) -> Text:
    word = event["event"].removeprefix("message.")
    how = [f"attempt {event['attempt']}"] if event.get("attempt") else []
    how += [str(event["worker"])] if event.get("worker") else []
    how += [f"in {event['took_seconds']} s"] if "took_seconds" in event else []
    how += [f"{event['error_type']}: {event['error']}"] if "error" in event else []
    how += [f"again at {event['retry_at']}"] if event.get("retry_at") else []
    how += [event["note"]] if event.get("note") else []
    line = Text(f"{event['at'][:19]}Z  ", style="dim")
    line.append(f"{word:<10}", style=STYLES.get(word, "default"))
    line.append(clean(f"{event['path']}  "), style="default")
    line.append(clean(", ".join(how)), style="dim")
    return line
