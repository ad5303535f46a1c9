"""workers, runs: the pull workers and the Spark runs of a queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import typer

from s3queue.cli.arguments import QueueName
from s3queue.cli.command import command, program
from s3queue.cli.output import table
from s3queue.cli.session import Session
from s3queue.cli.words import age, one_line, when
from s3queue.dashboard.overview import live_workers
from s3queue.documents.run_documents import MANIFEST_BYTES, is_silent, state_word
from s3queue.encoding import format_instant, parse_json
from s3queue.errors import CorruptState
from s3queue.queue import Queue
from s3queue.store import Object, listing, open_state

PANEL = "Work"


@command(program, "workers orders", "workers orders --json | jq -r '.[] | select(.is_fresh) | .id'", panel=PANEL)
def workers(ctx: typer.Context, queue: QueueName = None) -> None:
    """List the pull workers of a queue by their heartbeats. (Lambda functions have none.)

    JSON: a list of id, started_at, seen_at, is_fresh, holds, stats.
    """
    session = Session.of(ctx)
    opened = session.queue(queue)
    found = live_workers(opened)
    now = opened.store.list(opened.keys.prefix("workers"), limit=1).at
    rows = [
        [
            one.id,
            "fresh" if one.is_fresh else "silent",
            when(one.seen_at, now),
            age(now - one.heartbeat.started_at),
            len(one.heartbeat.holds),
            *(one.heartbeat.stats.get(name, 0) for name in ("succeeded", "retried", "dead")),
        ]
        for one in found
    ]
    columns = ["~worker", "state", "last seen", ">up for", ">holds", ">completed", ">retried", ">dead"]
    session.answer([one.to_json() for one in found], table(columns, rows))
    if not found:
        session.note(f"{opened.name} has no pull worker")


@command(program, "runs exports", "runs exports --json", panel=PANEL)
def runs(ctx: typer.Context, queue: QueueName = None) -> None:
    """List the Spark runs of a queue: its slots, and the manifests with the messages of each run.

    JSON: a list of name, kind (slot or manifest), modified_at, age_seconds, size, document.
    """
    session = Session.of(ctx)
    opened = session.queue(queue)
    found = _runs(opened)
    rows = []
    for one in found:
        document = one["document"] or {}
        run = document.get("run") or document.get("run_id") or document.get("id") or "-"
        held = next((len(document[name]) for name in ("holds", "paths", "messages") if _is_list(document, name)), "-")
        written = timedelta(seconds=one["age_seconds"])
        state = str(document.get("state") or "")
        silent = one["kind"] != "slot" and is_silent(state, written)
        note = one_line(document.get("note") or document.get("reason") or "")
        shown = state_word(state, is_silent=silent).lower() or "-"
        rows.append([one["name"], one["kind"], run, shown, held, f"{age(written)} ago", note])
    session.answer(found, table(["~name", "kind", "~run", "state", ">holds", "last written", "~note"], rows))
    if not found:
        session.note(f"{opened.name} has no Spark run")


def _is_list(document: dict[str, Any], name: str) -> bool:
    return isinstance(document.get(name), list)


def _runs(queue: Queue) -> list[dict[str, Any]]:
    found = []
    prefix = queue.keys.prefix("runs")
    for page in listing(queue.store, prefix):
        for entry in page.objects:
            name = entry.key.removeprefix(prefix)
            stored = open_state(queue.store, entry.key) if entry.size <= MANIFEST_BYTES else None
            found.append(
                {
                    "name": name,
                    "kind": "slot" if name.startswith("slot-") else "manifest",
                    "modified_at": format_instant(entry.modified_at),
                    "age_seconds": (page.at - entry.modified_at).total_seconds(),
                    "size": entry.size,
                    "document": _document(stored) if stored else None,
                }
            )
    return found


def _document(stored: Object) -> dict[str, Any] | None:
    try:
        document = parse_json(stored.read(MANIFEST_BYTES))
    except (CorruptState, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
