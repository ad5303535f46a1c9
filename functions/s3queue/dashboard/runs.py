"""Runs: the Spark runs of a queue, newest first, from the manifests and slots under `runs/`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from s3queue.documents.run_documents import MANIFEST_BYTES, RUN_SILENT, Manifest, Slot, is_silent, state_word
from s3queue.encoding import format_instant, parse_json
from s3queue.errors import CorruptState
from s3queue.queue import Queue
from s3queue.store import ObjectInfo, listing, open_state

from .console import Console
from .parallel import in_parallel
from .run_models import Runs, RunView

#: How many are read, and how many LIST pages to find the newest: a queue keeps the runs of some days.
RUNS_READ = 50
RUN_PAGES = 10
#: Paths of a run that are told of; it may hold thousands.
PATHS_TOLD = 20


def runs(queue: Queue, console: Console | None = None) -> Runs:
    """The slots, then the newest runs: their names sort by time. One LIST per thousand, and a GET for each."""
    entries: list[ObjectInfo] = []
    now, is_all = None, True
    for page in listing(queue.store, queue.keys.prefix("runs"), pages=RUN_PAGES):
        entries += page.objects
        now, is_all = page.at, page.next_after is None
    if now is None:
        return Runs(runs=[], exact=True)
    slots = [entry for entry in entries if queue.keys.slot_number(entry.key) is not None]
    others = [entry for entry in entries if queue.keys.slot_number(entry.key) is None]
    newest = sorted(others, key=lambda entry: (entry.modified_at, entry.key), reverse=True)[:RUNS_READ]
    at, shown = now, [*newest, *slots[:RUNS_READ]]
    found = in_parallel(lambda entry: _view(queue, entry, at, console or Console()), shown)
    _name_jobs(found)
    return Runs(runs=found, exact=is_all and len(shown) == len(entries))


def _name_jobs(found: Sequence[RunView]) -> None:
    """A run's job is in its slot."""
    jobs = {view.run: view.job for view in found if view.kind == "slot" and view.job}
    for view in found:
        if view.kind == "run":
            view.job = jobs.get(view.run, "")


def _view(queue: Queue, entry: ObjectInfo, now: datetime, console: Console) -> RunView:
    stored = open_state(queue.store, entry.key)
    body = b""
    document = None
    try:
        body = stored.read(MANIFEST_BYTES) if stored else b""
        document = parse_json(body) if body else None
    except (CorruptState, ValueError, RecursionError):
        document = None
    said = document.get("state") if isinstance(document, dict) else None
    view = RunView(
        name=entry.key.removeprefix(queue.keys.prefix("runs")),
        modified_at=format_instant(entry.modified_at),
        age_seconds=max(0.0, (now - entry.modified_at).total_seconds()),
        size=entry.size,
        document=document,
        kind="other",
        state=said if isinstance(said, str) else "unknown",
    )
    try:
        if queue.keys.slot_number(entry.key) is not None:
            _fill_slot(view, Slot.from_bytes(body, entry.key))
        else:
            _fill_run(view, Manifest.from_bytes(body, entry.key), entry.modified_at, now)
    except CorruptState as error:
        view.note = str(error)
    view.is_silent = view.kind != "slot" and is_silent(view.state, now - entry.modified_at)
    view.shown = state_word(view.state, is_silent=view.is_silent)
    if view.kind == "run":
        view.logs = console.run_logs(view.run)
    return view


def _fill_slot(view: RunView, slot: Slot) -> None:
    view.kind, view.state, view.run, view.job, view.note = "slot", slot.state, slot.run, slot.job, slot.reason


def _fill_run(view: RunView, manifest: Manifest, written_at: datetime, now: datetime) -> None:
    view.kind, view.state, view.run = "run", manifest.state, manifest.run
    view.started_at = format_instant(manifest.opened_at)
    has_ended = manifest.state in ("closed", "failed") or now - written_at > RUN_SILENT
    until = written_at if has_ended else now
    # Its launcher's clock dated the beginning, S3's the end.
    view.duration_seconds = max(0.0, (until - manifest.opened_at).total_seconds())
    view.counts, view.rounds, view.slot = dict(manifest.counts), manifest.rounds, manifest.slot
    view.claimed, view.begun = len(manifest.paths), manifest.started
    view.paths, view.note = list(manifest.paths[:PATHS_TOLD]), manifest.note
