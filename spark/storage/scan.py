"""Scan: a prefix of any size, from the executors: the driver finds key ranges, executors list and read them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from s3queue.store import ObjectInfo, ObjectStore, Page, listing
from spark.rows.schemas import columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from .bucket import Bucket

T = TypeVar("T")
U = TypeVar("U")
#: Requests in flight per task: they wait for the network, not for the processor.
THREADS = 16
#: Rows of one Arrow batch that Python hands back, and bytes of its texts: whatever comes first. A column of a batch
#: holds 2 GiB at most, and a task has the batch several times in memory.
ROWS_PER_BATCH = 2000
BYTES_PER_BATCH = 16 * 1024 * 1024
#: Groups that the layout makes and that are worth a LIST of their own: kinds of paths, priorities, shards.
GROUP = re.compile(r"(messages|delayed|p[0-9]{3}|[0-9a-f]{2})/")
LISTED = columns(key="string", etag="string", size="bigint", modified_at="timestamp")
_RANGE = columns(prefix="string", after="string", until="string")
_TEXTS = (str, bytes)
Batches = Iterable["pa.RecordBatch"]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys of a prefix from behind `after` to `until`, both as S3 sorts them; empty: no bound."""

    prefix: str
    after: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a prefix holds: its ranges of a page each, how many objects, and the time of the oldest."""

    ranges: tuple[KeyRange, ...] = ()
    objects: int = 0
    oldest_at: datetime | None = None


def survey(store: ObjectStore, prefix: str, *, threads: int = THREADS) -> Extent:
    """The extent of a prefix: one LIST per 1,000 objects, side by side where the layout has groups."""
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(lambda leaf: _pages(store, leaf), leaves(store, prefix)[0]))
    oldest = [part.oldest_at for part in parts if part.oldest_at]
    return Extent(
        tuple(found for part in parts for found in part.ranges),
        sum(part.objects for part in parts),
        min(oldest, default=None),
    )


@dataclass(frozen=True, slots=True)
class Leaf:
    """A prefix that is listed as a whole, and its first page, if that is known already."""

    prefix: str
    first: Page | None = None

    def pages(self, store: ObjectStore) -> Iterator[Page]:
        if self.first is None:
            yield from listing(store, self.prefix)
            return
        yield self.first
        if self.first.next_after is not None:
            yield from listing(store, self.prefix, after=self.first.next_after)


def leaves(store: ObjectStore, prefix: str) -> tuple[list[Leaf], datetime]:
    """The prefix itself, or its groups if it holds nothing else: only then can they be listed side by side.

    And S3's time at the first look, which was at the prefix.
    """
    leaves, open_prefixes, at = list[Leaf](), [prefix], None
    while open_prefixes:
        here = open_prefixes.pop()
        page = store.list(here, delimiter="/")
        at = at or page.at
        groups = [group for group in page.prefixes if GROUP.fullmatch(group.removeprefix(here))]
        if page.objects or page.next_after or len(groups) < len(page.prefixes):
            # Without groups it is the same page that a LIST of everything begins with.
            leaves.append(Leaf(here, None if page.prefixes else page))
        else:
            open_prefixes += groups
    assert at
    return leaves, at


def _pages(store: ObjectStore, leaf: Leaf) -> Extent:
    ranges, objects, oldest, after = [], 0, None, ""
    for page in leaf.pages(store):
        if page.objects:
            ranges.append(KeyRange(leaf.prefix, after, page.objects[-1].key))
            objects += len(page.objects)
            first = min(entry.modified_at for entry in page.objects)
            oldest = min(oldest, first) if oldest else first
            after = page.objects[-1].key
    return Extent(tuple(ranges), objects, oldest)


def list_range(store: ObjectStore, keys: KeyRange) -> Iterator[ObjectInfo]:
    """The objects of a range, as they are now."""
    for page in listing(store, keys.prefix, after=keys.after):
        for entry in page.objects:
            if keys.until and entry.key > keys.until:
                return
            yield entry
            if entry.key == keys.until:
                return


def listed(spark: SparkSession, bucket: Bucket, ranges: Sequence[KeyRange]) -> DataFrame:
    """Every object of the ranges, without its body; the executors list."""

    def per_partition(batches: Batches) -> Batches:
        store = bucket.store()
        rows = (
            (entry.key, entry.etag, entry.size, entry.modified_at)
            for prefix, after, until in rows_of(batches)
            for entry in list_range(store, KeyRange(prefix, after, until))
        )
        yield from batches_of(rows, LISTED)

    asked = [(found.prefix, found.after, found.until) for found in ranges]
    return spread(spark, asked, _RANGE).mapInArrow(per_partition, LISTED)


def spread(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: StructType) -> DataFrame:
    """Few rows that each mean much work, one partition for each as far as that makes sense."""
    wanted = min(max(1, len(rows)), 16 * spark.sparkContext.defaultParallelism)
    return spark.createDataFrame(list(rows), schema).repartition(wanted)


def in_threads(work: Callable[[T], U], items: Iterable[T], *, threads: int = THREADS) -> Iterator[U]:
    """Like `map`, in the same order, with `threads` at work; at most a few results wait to be taken."""
    waiting: deque[Future[U]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def batches_of(rows: Iterable[Sequence[Any]], schema: StructType) -> Batches:
    """Rows as Arrow batches of a Spark schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(schema)
    for chunk in chunks_of(rows):
        yield batch_of(chunk, arrow)


def chunks_of(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    """Rows in lists that fit into an Arrow batch."""
    chunk: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        chunk.append(row)
        for value in row:
            if value.__class__ in _TEXTS:
                size += len(value)
        if len(chunk) >= ROWS_PER_BATCH or size >= BYTES_PER_BATCH:
            full, chunk, size = chunk, [], 0
            yield full
    if chunk:
        yield chunk


def batch_of(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
