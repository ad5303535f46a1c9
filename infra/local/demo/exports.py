"""The heavy part: datasets in the bucket, thirty exports of them for Spark, and what each has to come to.

What is expected is computed here from the rows themselves, in plain Python, and compared with the files that Spark
wrote, row by row.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from s3queue.documents.record import Record
from s3queue.documents.run_documents import Manifest
from s3queue.queue import Queue
from s3queue.spark_runs.slots import RunStore
from s3queue.store import listing

from .accounts import Check
from .messages import Ending, Sent

QUEUE = "exports"
COUNTRIES = ("DE", "ES", "FR", "IT", "NL", "PL", "SE")
PAGES = ("home", "search", "basket")
#: One for all of them; another one for what comes while the first one closes.
MOST_RUNS = 2

Row = dict[str, Any]
_DONE: tuple[str, Ending] = ("exports, on Spark", "completed")
_REFUSED: tuple[str, Ending] = ("exports, poison", "dead")

ORDERS: list[Row] = [
    {"order": n, "country": COUNTRIES[n % 7], "items": 1 + n % 5, "cents": 100 + 37 * n % 9900} for n in range(1, 401)
]
CUSTOMERS: list[Row] = [
    {"customer": f"customer-{n}", "country": COUNTRIES[n % 7], "newsletter": n % 3 == 0} for n in range(1, 141)
]
VISITS: list[Row] = [{"page": PAGES[n % 3], "country": COUNTRIES[n % 7], "ms": 20 + n * n % 700} for n in range(1, 701)]


def datasets() -> Iterator[tuple[str, bytes]]:
    """Keys and bytes: NDJSON in two objects, CSV, Parquet."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    for number, part in enumerate((ORDERS[:200], ORDERS[200:]), start=1):
        yield f"datasets/orders/{number}.ndjson", b"".join(json.dumps(row).encode() + b"\n" for row in part)
    body = io.BytesIO()
    csv.write_csv(pa.Table.from_pylist(CUSTOMERS), body)
    yield "datasets/customers.csv", body.getvalue()
    body = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(VISITS), body)
    yield "datasets/visits.parquet", body.getvalue()


@dataclass(frozen=True, slots=True)
class Export:
    """A request, and the rows that its files have to hold; None: it has to be refused."""

    sent: Sent
    rows: list[Row] | None


def exports() -> list[Export]:
    """28 that can be done, and two that cannot: one names no column, one divides by zero where Spark meets the data."""
    orders = {"source": "datasets/orders/", "source_format": "ndjson"}
    customers = {"source": "datasets/customers.csv", "source_format": "csv"}
    visits = {"source": "datasets/visits.parquet", "source_format": "parquet"}
    measures = {"visits": {"function": "count"}, "slowest": {"function": "max", "column": "ms"}}
    by_page = {"by": ["page"], "measures": measures}
    found = []
    for country in COUNTRIES:
        here = f"country = '{country}'"
        theirs = _where(country)
        found += [
            _export(
                f"orders-{country}",
                orders | {"filter": here, "columns": ["order", "cents"], "format": "csv"},
                [{"order": row["order"], "cents": row["cents"]} for row in theirs(ORDERS)],
            ),
            _export(
                f"large-orders-{country}",
                orders | {"filter": f"{here} and cents > 5000", "format": "json"},
                [row for row in theirs(ORDERS) if row["cents"] > 5000],
            ),
            _export(
                f"subscribers-{country}",
                customers | {"filter": f"{here} and newsletter", "format": "parquet"},
                [row for row in theirs(CUSTOMERS) if row["newsletter"]],
            ),
            _export(
                f"pages-{country}",
                visits | {"filter": here, "aggregate": by_page, "format": "parquet"},
                [_page(page, [row for row in theirs(VISITS) if row["page"] == page]) for page in PAGES],
            ),
        ]
    found.insert(5, _export("no-such-column", orders | {"filter": "customer = 'ada'", "format": "csv"}, None))
    found.insert(15, _export("by-zero", orders | {"filter": "cents / (items - 1) > 1000", "format": "csv"}, None))
    return found


def _where(country: str) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [row for row in rows if row["country"] == country]


def _page(page: str, visits: Sequence[Row]) -> Row:
    return {"page": page, "visits": len(visits), "slowest": max(row["ms"] for row in visits)}


def _export(name: str, request: Mapping[str, Any], rows: list[Row] | None) -> Export:
    body = json.dumps({**request, "destination": f"analytics/exports/{name}/"}).encode()
    kind, ending = _DONE if rows is not None else _REFUSED
    return Export(Sent(kind=kind, queue=QUEUE, path=f"messages/{name}.json", body=body, ending=ending), rows)


def runs(queue: Queue) -> list[Manifest]:
    """The runs that there were, oldest first."""
    prefix = queue.keys.prefix("runs")
    names = [entry.key.removeprefix(prefix) for page in listing(queue.store, prefix) for entry in page.objects]
    found = [RunStore(queue).manifest(name.removesuffix(".json")) for name in sorted(names) if name.endswith(".json")]
    return [manifest for manifest, _ in filter(None, found)]


def checks(queue: Queue, asked: Sequence[Export], records: Mapping[str, Record | None]) -> Iterator[Check]:
    """What Spark wrote, and in how many runs."""
    yield _files(queue, asked, records)
    yield _runs(queue, asked)


def _files(queue: Queue, asked: Sequence[Export], records: Mapping[str, Record | None]) -> Check:
    files, rows, wrong = 0, 0, []
    for one in asked:
        record = records[one.sent.key]
        if one.rows is None or record is None:
            continue
        result = record.result or {}
        written = [row for key in result.get("files", ()) for row in _rows(queue, key)]
        files += len(result.get("files", ()))
        rows += len(written)
        if _counted(written) != _counted(one.rows) or result.get("rows") != len(one.rows):
            wrong.append(one.sent.path)
    said = f"the exports are {files} files with {rows:,} rows, the very ones that were asked for"
    return Check(said if not wrong else f"{said}, except for {', '.join(wrong)}", not wrong)


def _runs(queue: Queue, asked: Sequence[Export]) -> Check:
    found = runs(queue)
    counts: Counter[str] = sum((Counter(manifest.counts) for manifest in found), Counter())
    refused = sum(one.rows is None for one in asked)
    wanted = {"completed": len(asked) - refused, "dead": refused}
    return Check(
        f"{len(found)} Spark run{'s' * (len(found) != 1)} did all of them: {counts['completed']} completed, "
        f"{counts['dead']} dead",
        len(found) <= MOST_RUNS and {name: counts[name] for name in wanted} == wanted,
    )


def _rows(queue: Queue, key: str) -> list[Row]:
    from pyarrow import csv, parquet

    found = queue.store.open(key)
    if found is None:
        return []
    body = found.read()
    if key.endswith(".json"):
        return [json.loads(line) for line in body.splitlines()]
    table = csv.read_csv(io.BytesIO(body)) if key.endswith(".csv") else parquet.read_table(io.BytesIO(body))
    return list(table.to_pylist())


def _counted(rows: Sequence[Row]) -> Counter[tuple[tuple[str, Any], ...]]:
    return Counter(tuple(sorted(row.items())) for row in rows)
