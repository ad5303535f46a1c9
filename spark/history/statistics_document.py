"""analytics/latest.json: what the dashboard shows. Version 1.

    {"v": 1, "computed_at": "2026-11-16T12:00:00Z", "since": "2026-11-09T00:00:00Z",
     "queues": {"emails": {
        "messages": 10, "objects": 4, "completed": 9, "dead": 1, "success_rate": 0.9,
        "wait_p50_seconds": 0.1, "wait_p95_seconds": …, "wait_p99_seconds": …, "run_p50_seconds": …, …
        "attempts": 5, "attempts_per_object": 1.25, "retried": 1, "workers": 2, "messages_per_worker": 5.0,
        "bytes": 4000, "unreadable_records": 0,
        "hours": [{"hour": "2026-11-16T11:00:00Z", …the same figures of one hour…}],
        "errors": [{"error_type": "SMTPServerDisconnected", "dead": 1, "failed_attempts": 3}],
        "busiest_workers": [{"worker": "worker-1", "messages": 7, "objects": 3}]}}}

Hours in which nothing finished have no row. A percentile is null only if nothing of it was ever started.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from s3queue.encoding import format_instant

from .statistics_frames import LISTED

VERSION = 1
#: Digits that are worth reading.
DIGITS = 6
_NOTHING = {"messages": 0, "objects": 0, "completed": 0, "dead": 0}


def document(
    computed: Mapping[str, Sequence[Any]], queues: Sequence[str], *, since: datetime, now: datetime
) -> dict[str, Any]:
    """From collected rows; every queue that was asked for is in it, whether anything finished or not."""
    totals = {row.queue: figures(row) for row in computed["totals"]}
    problems = {row.queue: row["count"] for row in computed["problems"]}
    hours: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(computed["hours"], key=lambda row: row.hour):
        hours[row.queue].append(hour_row(row))
    return {
        "v": VERSION,
        "computed_at": format_instant(now),
        "since": format_instant(since),
        "queues": {
            queue: totals.get(queue, dict(_NOTHING))
            | {
                "unreadable_records": problems.get(queue, 0),
                "hours": hours[queue],
                "errors": _summed(computed["errors"], queue, "error_type", ("dead", "failed_attempts")),
                "busiest_workers": _summed(computed["workers"], queue, "worker", ("messages", "objects")),
            }
            for queue in sorted(queues)
        },
    }


def hour_row(row: Any) -> dict[str, Any]:
    return {"hour": format_instant(_utc(row.hour))} | figures(row)


def figures(row: Any) -> dict[str, Any]:
    """A collected row of `summary` as plain JSON, without what it was grouped by."""
    return {
        name: round(value, DIGITS) if isinstance(value, float) else value
        for name, value in row.asDict().items()
        if name not in ("queue", "hour")
    }


def _utc(at: datetime) -> datetime:
    # Spark hands out naive local times.
    return at.astimezone(UTC)


def _summed(rows: Sequence[Any], queue: str, name: str, counts: tuple[str, str]) -> list[dict[str, Any]]:
    """The hours' lists as one: of what is among an hour's first, which is all unless an hour has very many."""
    summed: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row.queue == queue:
            summed[row[name]].update({count: row[count] for count in counts})
    ranked = sorted(summed.items(), key=lambda item: (*(-item[1][count] for count in counts), item[0]))
    return [{name: key} | {count: found[count] for count in counts} for key, found in ranked[:LISTED]]
