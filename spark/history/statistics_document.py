"""analytics/latest.json: what the dashboard shows. Version 1.

    {"v": 1, "computed_at": "2026-11-16T12:00:00Z", "since": "2026-11-09T00:00:00Z",
     "queues": {"emails": {
        "messages": 10, "objects": 4, "completed": 9, "dead": 1, "success_rate": 0.9,
        "wait_p50_seconds": 0.1, "wait_p95_seconds": …, "wait_p99_seconds": …, "run_p50_seconds": …, …
        "attempts": 5, "attempts_per_object": 1.25, "retried": 1, "workers": 2, "messages_per_worker": 5.0,
        "bytes": 4000, "unreadable_records": 0, "percentile_error": 0.025,
        "hours": [{"hour": "2026-11-16T11:00:00Z", …the same figures of one hour…}],
        "errors": [{"error_type": "SMTPServerDisconnected", "dead": 1, "failed_attempts": 3}],
        "busiest_workers": [{"worker": "worker-1", "messages": 7, "objects": 3}]}}}

Hours in which nothing finished have no row. A percentile is null only if nothing of it was ever started. An hour's
percentiles are exact, unless it has more than 10,000 different durations: then their ranks are, within 1 / 10,000.
Those of a queue are made of its hours' histograms: `percentile_error` is how far off their values may be. Its `workers`
are those that its hours list, and at least as many as the busiest hour has.

A line of hours.ndjson has, besides, `errors`, `workers_busiest`, `histograms` and `computed_at`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from s3queue.encoding import format_instant

from .statistics_frames import FIRST_SECONDS, LISTED, QUANTILES, WIDTH

VERSION = 1
#: Digits that are worth reading.
DIGITS = 6
#: How far off a percentile of several hours may be, as a share of it: half a bucket.
ERROR = round(WIDTH**0.5 - 1, 3)
#: What a line of hours.ndjson has and latest.json has not.
UNSHOWN = ("errors", "workers_busiest", "histograms", "computed_at")
_SUMMED = ("objects", "messages", "completed", "dead", "attempts", "retried", "bytes")
_NOTHING = {"messages": 0, "objects": 0, "completed": 0, "dead": 0}


def document(
    hours: Mapping[str, Sequence[Mapping[str, Any]]], problems: Mapping[str, int], *, since: datetime, now: datetime
) -> dict[str, Any]:
    """From the lines of hours.ndjson of each queue, oldest first; every queue that was asked for is in it, whether
    anything finished or not.
    """
    return {
        "v": VERSION,
        "computed_at": format_instant(now),
        "since": format_instant(since),
        "queues": {
            queue: totals(rows)
            | {
                "unreadable_records": problems.get(queue, 0),
                "hours": [{name: value for name, value in row.items() if name not in UNSHOWN} for row in rows],
                "errors": _summed(rows, "errors", "error_type", ("dead", "failed_attempts")),
                "busiest_workers": _summed(rows, "workers_busiest", "worker", ("messages", "objects")),
            }
            for queue, rows in sorted(hours.items())
        },
    }


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of several hours as one."""
    if not rows:
        return dict(_NOTHING)
    summed = {name: sum(row[name] for row in rows) for name in _SUMMED}
    ended = summed["completed"] + summed["dead"]
    listed = {one["worker"] for row in rows for one in row["workers_busiest"]}
    workers = max(len(listed), *(row["workers"] for row in rows))
    percentiles: dict[str, float | None] = {}
    for what in ("wait", "run"):
        counts: Counter[int] = Counter()
        for row in rows:
            counts.update({int(bucket): count for bucket, count in row["histograms"].get(what, {}).items()})
        percentiles |= {f"{what}_{name}_seconds": _quantile(counts, share) for name, share in QUANTILES.items()}
    shares = {
        "success_rate": summed["completed"] / ended if ended else None,
        "attempts_per_object": summed["attempts"] / summed["objects"] if summed["objects"] else None,
        "messages_per_worker": summed["messages"] / workers if workers else None,
    }
    rounded = {name: None if value is None else round(value, DIGITS) for name, value in shares.items()}
    return summed | percentiles | rounded | {"workers": workers, "percentile_error": ERROR}


def _quantile(counts: Mapping[int, int], share: float) -> float | None:
    wanted, passed = sum(counts.values()) * share, 0
    for bucket, count in sorted(counts.items()):
        passed += count
        if passed >= wanted:
            return 0.0 if bucket == 0 else float(f"{FIRST_SECONDS * WIDTH ** (bucket - 0.5):.4g}")
    return None


def hour_row(row: Any) -> dict[str, Any]:
    return {"hour": format_instant(_utc(row.hour))} | figures(row)


def lines_by_day(computed: Mapping[str, Sequence[Any]], now: datetime) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Queue and day → lines of hours.ndjson, from collected rows."""
    errors, workers = _grouped(computed["errors"]), _grouped(computed["workers"])
    histograms: dict[tuple[str, Any], dict[str, dict[str, int]]] = defaultdict(dict)
    for row in computed["histograms"]:
        counts = {str(bucket): count for bucket, count in sorted(row.buckets.items())}
        histograms[row.queue, row.hour][row.what] = counts
    days: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(computed["hours"], key=lambda row: (row.queue, row.hour)):
        where = (row.queue, row.hour)
        described = hour_row(row) | {"errors": errors.get(where, []), "workers_busiest": workers.get(where, [])}
        described |= {"histograms": histograms.get(where, {}), "computed_at": format_instant(now)}
        days[row.queue, described["hour"][:10]].append(described)
    return days


def _grouped(rows: Sequence[Any]) -> dict[tuple[str, Any], list[dict[str, Any]]]:
    grouped: dict[tuple[str, Any], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        described = row.asDict()
        grouped[described.pop("queue"), described.pop("hour")].append(described)
    return grouped


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


def _summed(rows: Sequence[Mapping[str, Any]], listed: str, name: str, counts: tuple[str, str]) -> list[dict[str, Any]]:
    """The hours' lists as one: of what is among an hour's first, which is all unless an hour has very many."""
    summed: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for one in row[listed]:
            summed[one[name]].update({count: one[count] for count in counts})
    ranked = sorted(summed.items(), key=lambda item: (*(-item[1][count] for count in counts), item[0]))
    return [{name: key} | {count: found[count] for count in counts} for key, found in ranked[:LISTED]]
