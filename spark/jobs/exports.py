"""exports: filters, chooses or aggregates a dataset, and writes it as files. Requests are `queues.exports.Export`."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    PySparkException,
)

from queues.exports import Aggregation, Export
from s3queue.archive.old_log import logged_queues, unconverted
from s3queue.archive.table import FOLDER
from s3queue.errors import QueueError, Reject
from s3queue.paths import format_due
from s3queue.store import listing
from s3queue.worker.context import Context
from spark.datasets import reading
from spark.datasets.expressions import BadExpression, Node, parse, to_column
from spark.datasets.files import write
from spark.heavy.reasons import reason_of
from spark.history.archived import read_parts
from spark.storage.bucket import Bucket

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_log = logging.getLogger(__name__)
#: Expressions meet values that they do not fit: `amount / 0`, `'x' > 3`.
DATA_ERRORS = (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
)
#: A tag without a time is an older version's: it ended with the attempt.
_FILE = re.compile(r"part-\d+-(?P<tag>(?P<digest>[0-9a-f]{8})-(?:(?P<claimed>\d{8}T\d{6}Z)-)?[0-9a-f-]*)\.\w+$")


def per_message(spark: SparkSession, export: Export, context: Context) -> dict[str, Any]:
    """Write what was asked for; the result names the files and counts the rows.

    Raises:
        Reject: no second attempt can help: an unknown column, an expression that is none, a source that is not there.
    """
    bucket = Bucket.of(spark)
    try:
        condition = parse(export.filter) if export.filter else None
        objects, source = find_and_read(spark, bucket, export)
        context.progress(0.1, f"{len(objects)} objects")
    except (BadExpression, reading.BadDataset) as error:
        raise Reject(str(error)) from error
    shaped = shape(source, condition, export.columns, export.aggregate)
    tag = tag_of(context)
    remove_earlier(bucket, export.destination, tag)
    try:
        escaped = export.escape_formulas
        files = write(shaped, bucket, export.destination, export.format, tag=tag, escape_formulas=escaped)
    except PySparkException as error:
        # The data is the same at the next attempt; anything else may be better then.
        if isinstance(error, DATA_ERRORS) or "BadDataset" in str(error):
            raise Reject(f"the expression cannot be evaluated on this data: {reason_of(error)}") from error
        raise
    context.progress(0.9, f"{len(files)} files")
    return {
        "files": [file.key for file in files],
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.bytes for file in files),
        "objects_read": len(objects),
        "bytes_read": sum(each.size for each in objects),
    } | ({"not_converted": left} if (left := old_layouts(bucket, export.sources)) else {})


def find_and_read(spark: SparkSession, bucket: Bucket, export: Export) -> tuple[Sequence[reading.Listed], DataFrame]:
    """The objects behind the sources, with their sizes, and their rows.

    The archive is a table: its log says which files count, and `queue` and `day` are columns.

    Raises:
        BadDataset: a source names nothing, or the objects are not of one kind.
    """
    archived = [source for source in export.sources if source.startswith(FOLDER)]
    if not archived:
        objects = reading.find(bucket, export.sources)
        return objects, reading.read(spark, bucket, objects, export.source_format)
    if len(archived) < len(export.sources) or export.source_format != "parquet":
        raise reading.BadDataset(f"{archived[0]!r} is a table of Parquet files: no other source, no other format")
    seen = bucket.archive().snapshot()
    found = [part for part in (seen.parts() if seen else []) if part.key.startswith(tuple(archived))]
    for source in archived:
        if not any(part.key.startswith(source) for part in found):
            raise reading.BadDataset(f"the archive has nothing at {source!r}")
    return [reading.Listed(part.key, part.bytes) for part in found], read_parts(spark, bucket, found)


def old_layouts(bucket: Bucket, sources: Sequence[str]) -> list[str]:
    """The queues among the sources that have commits in the layout before the table: what these hold is not exported,
    and the log says so. Who may not look there is not told.
    """
    store = bucket.store()
    if not any(source.startswith(FOLDER) for source in sources):
        return []
    try:
        asked = [queue for queue in logged_queues(store) if _is_asked_for(queue, sources)]
        seen = bucket.archive().snapshot() if asked else None
        left = [queue for queue in asked if unconverted(store, seen, queue)]
    except QueueError as error:
        _log.warning("unknown whether the archive has parts in the old layout: %s", error)
        return []
    for queue in left:
        _log.warning(
            "part of the archive of %s is in the old layout, and not exported: run `s3queue archive convert %s`",
            *(queue, queue),
        )
    return left


def _is_asked_for(queue: str, sources: Sequence[str]) -> bool:
    folder = f"{FOLDER}queue={queue}/"
    return any(source.startswith(folder) or folder.startswith(source) for source in sources)


def shape(
    source: DataFrame, condition: Node | None, columns: Sequence[str] | None, aggregate: Aggregation | None
) -> DataFrame:
    """What was asked for, from what is there.

    Raises:
        Reject: a name that is no column, or an operation that its type does not have.
    """
    wanted = [
        *(condition.columns() if condition else ()),
        *(columns or ()),
        *(aggregate.by if aggregate else ()),
        *(measure.column for measure in (aggregate.measures.values() if aggregate else ()) if measure.column),
    ]
    check_columns(source, wanted)
    try:
        shaped = source.where(to_column(condition)) if condition else source
        if aggregate:
            return _aggregated(shaped, aggregate)
        return shaped.select(*map(_quoted, columns)) if columns else shaped
    except AnalysisException as error:
        raise Reject(f"the expression cannot be evaluated on this data: {str(error).splitlines()[0]}") from error
    except (ArithmeticError, ValueError) as error:
        # A literal that Spark has no value for, such as an instant before its calendar begins.
        raise Reject(f"the filter contains a value that Spark cannot represent: {error}") from error


def check_columns(source: DataFrame, wanted: Sequence[str]) -> None:
    """Raises Reject, naming what is there, if a name is no column."""
    known = {name.lower() for name in source.columns}
    for name in wanted:
        if name.lower() not in known:
            raise Reject(f"unknown column {name!r}; the columns are {', '.join(source.columns)}")


def _aggregated(frame: DataFrame, aggregate: Aggregation) -> DataFrame:
    from pyspark.sql import functions as sf

    measures = []
    for name, measure in aggregate.measures.items():
        column = sf.col(_quoted(measure.column)) if measure.column else sf.lit(1)
        measures.append(getattr(sf, measure.function)(column).alias(name))
    return frame.groupBy(*map(_quoted, aggregate.by)).agg(*measures)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def tag_of(context: Context) -> str:
    """Which message the files belong to, or which line of a batch; when it was claimed, by S3's clock; and the claim.

    Attempts would not do: they begin with 1 again when a message is replayed, or its name PUT again.
    """
    named = f"{context.path}\0{context.line}" if context.line else context.path
    digest = hashlib.sha256(named.encode()).hexdigest()[:8]
    return f"{digest}-{format_due(context.claimed_at)}-{context.fence}"


def remove_earlier(bucket: Bucket, destination: str, tag: str) -> None:
    """The files of earlier claims of the same message: of attempts that died, and of the messages that had its name.

    Not those of later ones: this worker may be late, and their files count. What a late one itself writes after this
    stays; the record names the files that count.
    """
    digest, claimed, _ = tag.split("-", 2)
    for page in listing(bucket.store(), f"{destination}part-"):
        for entry in page.objects:
            found = _FILE.search(entry.key)
            if found and found["digest"] == digest and found["tag"] != tag and (found["claimed"] or "") <= claimed:
                bucket.store().delete(entry.key)
