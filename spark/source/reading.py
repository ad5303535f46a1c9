"""Reading: the objects of a queue, or the files of its archive, by the executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from s3queue.archive.old_log import check_converted
from s3queue.archive.parts import Part, part_batches
from s3queue.queue import Queue
from s3queue.store import ObjectStore
from spark.storage.scan import KeyRange, batches_of, in_threads, list_range

from .filters import Bounds, Wanted, places
from .kinds import KINDS, Kind, Listed, Target, is_told
from .splitting import KEYS_PER_TASK, split

if TYPE_CHECKING:
    import pyarrow as pa

#: Whole messages are in memory, so fewer at a time than of records.
THREADS = 4


class Objects(InputPartition):
    """Objects that were listed, or are known by their keys."""

    def __init__(self, entries: Sequence[Listed]) -> None:
        self.entries = tuple(entries)


class Range(InputPartition):
    """Objects that whoever reads them lists."""

    def __init__(self, keys: KeyRange) -> None:
        self.keys = keys


def in_tasks(entries: Sequence[Listed]) -> list[InputPartition]:
    return [Objects(entries[start : start + KEYS_PER_TASK]) for start in range(0, len(entries), KEYS_PER_TASK)]


class QueueReader(DataSourceReader):
    """Keys that are named are read without a LIST; a prefix is listed once, by whoever reads it."""

    def __init__(self, target: Target, kind: str, schema: StructType, wanted: Wanted) -> None:
        self._target = target
        self._kind = kind
        self._schema = schema
        #: What the frame is, and what a query wants of it.
        self._frame = self._wanted = wanted

    def partitions(self) -> list[InputPartition]:
        store, keys = self._target.bucket.store(), self._target.keys
        found = places(self._kind, [keys.prefix(prefix) for prefix in KINDS[self._kind].prefixes], self._wanted)
        listed = [Listed(key) for key in found.keys]
        ranges: list[InputPartition] = []
        for span in found.spans:
            part = split(store, span)
            listed += part.listed
            ranges += map(Range, part.ranges)
        return [*in_tasks(listed), *ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        paths = self._frame.of("path")
        yield from read_objects(self._target.connect(), KINDS[self._kind], self._schema, partition, paths)


class FilteredReader(QueueReader):
    """Takes a query's filters, too. On Spark 4.1 for one query alone: see datasource.py."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        self._wanted = Wanted.by(filters, self._frame)
        # All of them: keys tell only where rows can be.
        return filters


def read_objects(
    queue: Queue,
    kind: Kind,
    schema: StructType,
    partition: InputPartition | None,
    paths: Bounds | None = None,
    *,
    as_listed: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition's objects, with the columns of the schema; of a frame that is bounded, those within.

    `as_listed`: a letter that was replaced since it was listed is left out, because it will be listed again.
    """
    positions = [kind.schema.names.index(name) for name in schema.names]
    path_at = kind.schema.names.index("path")
    bounds = paths or Bounds()
    needs_no_body = is_told(kind, schema.names)

    def rows(entry: Listed) -> list[tuple[Any, ...]]:
        told = kind.told(queue, entry) if needs_no_body else None
        if told is not None:
            return [tuple(told[name] for name in schema.names)] if bounds.allows(told["path"]) else []
        seen = entry if as_listed else replace(entry, modified_at=None)
        found = (row for row in kind.rows(queue, seen) if bounds.allows(row[path_at]))
        return [tuple(row[position] for position in positions) for row in found]

    found = in_threads(rows, _entries(queue.store, partition), threads=THREADS)
    yield from batches_of((row for each in found for row in each), schema)


def _entries(store: ObjectStore, partition: InputPartition | None) -> Iterator[Listed]:
    if isinstance(partition, Range):
        yield from map(Listed.of, list_range(store, partition.keys))
    # Without any partition Spark asks for one that is None.
    elif isinstance(partition, Objects):
        yield from partition.entries


class PartPartition(InputPartition):
    """A file of the archive."""

    def __init__(self, part: Part) -> None:
        self.part = part


class ArchiveReader(DataSourceReader):
    """The driver reads the table's log; the executors read files, one each, and of them the columns that are wanted."""

    def __init__(self, target: Target, schema: StructType, wanted: Wanted) -> None:
        self._target = target
        self._schema = schema
        self._frame = self._wanted = wanted

    def partitions(self) -> list[InputPartition]:
        bucket, queue = self._target.bucket, self._target.queue
        seen = bucket.archive().snapshot()
        check_converted(bucket.store(), seen, queue)
        days = self._wanted.of("day")
        return [PartPartition(part) for part in (seen.parts(queue) if seen else ()) if days.allows(part.day)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        if isinstance(partition, PartPartition):
            part, schema = partition.part, to_arrow_schema(self._schema)
            constants = {"queue": part.queue, "day": part.day}
            yield from part_batches(self._target.bucket.store(), part.key, part.rows, constants, schema)


class FilteredArchiveReader(ArchiveReader):
    """Takes a query's filters, too. On Spark 4.1 for one query alone: see datasource.py."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        self._wanted = Wanted.by(filters, self._frame)
        return filters
