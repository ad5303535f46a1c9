"""analytics/hours/…/hours.ndjson: the figures of a queue's day, a line for each hour, for good.

A line is replaced by one that was computed later, and by nothing else: computations may run at once, die and be
repeated. It stays when the records of its hour are gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from s3queue.encoding import NONSENSE, as_object, as_text, parse_instant, parse_json
from s3queue.errors import Conflict, CorruptState
from s3queue.keys import Keys
from s3queue.store import Object, ObjectStore, open_state

#: A larger file is not read: 24 lines with their histograms.
LINES_BYTES = 16 * 1024 * 1024
#: What every line must have, so that totals can be made of it.
_NEEDED = ("objects", "messages", "completed", "dead", "attempts", "retried", "bytes", "workers")


def merge_lines(store: ObjectStore, queue: str, day: str, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put new lines among those of a day; returns all of them, by the hour. No PUT if nothing changes."""
    key = Keys(queue).hours(day)
    while True:
        found = open_state(store, key)
        before = read_lines(found) if found else {}
        after = dict(before)
        for line in lines:
            known = before.get(line["hour"])
            if known is None or (known["computed_at"] <= line["computed_at"] and _figures(known) != _figures(line)):
                after[line["hour"]] = dict(line)
        # In one order, whether a line was just computed or read.
        whole = [dict(sorted(after[hour].items())) for hour in sorted(after)]
        if after == before:
            return whole
        body = "".join(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n" for line in whole).encode()
        etag = found.etag if found else None
        try:
            store.put(key, body, if_match=etag, if_absent=etag is None, content_type="application/x-ndjson")
            return whole
        except Conflict:
            continue  # another computation wrote it meanwhile: put ours among its lines


def read_lines(found: Object) -> dict[str, dict[str, Any]]:
    """Hour → line. Lines that make no sense, or are of an older version, are left out."""
    lines = {}
    try:
        body = found.read(LINES_BYTES)
    except CorruptState:
        return {}
    for text in body.splitlines():
        try:
            line = as_object(parse_json(text))
            parse_instant(line["hour"])
            as_text(line["computed_at"])
            as_object(line["histograms"])
            if all(type(line[name]) is int for name in _NEEDED) and isinstance(line["errors"], list):
                lines[line["hour"]] = line
        except NONSENSE:
            continue
    return lines


def _figures(line: Mapping[str, Any]) -> dict[str, Any]:
    """Without when it was computed: a line whose figures are the same stays as it is."""
    return json.loads(json.dumps({name: value for name, value in line.items() if name != "computed_at"}))  # type: ignore[no-any-return]
