"""A data source for Spark 4: a queue as a DataFrame or a stream, and a DataFrame or a stream into a queue.

    register(spark)
    spark.read.format("s3queue").options(url="s3://bucket/emails", kind="dead").load()
    df.select(sf.to_json(sf.struct("*")).alias("body")).write.format("s3queue").options(url=…).mode("append").save()

| option | for | |
|---|---|---|
| `url` | all | `s3://bucket/queue`, or `s3://bucket` and an option `queue` |
| `kind` | reading | `messages` (with the delayed ones), `records`, `archive`, `dead`; of a stream `records` or `dead` |
| `columns` | reading | `path,outcome`: only these, in this order |
| `path`, `path_prefix`, `path_from`, `path_to` | reading | only these paths, bounds included; of the archive `day`, … |
| `pushdown` | reading a frame | `true`: use a query's filters, too; see below before you do |
| `settle_seconds`, `max_objects`, `starting_at` | reading a stream | as in source/streaming.py |
| `run` | writing | as in bulk_enqueue.py; of a stream, the name of all its runs, else that of its checkpoint |
| `per_object`, `priority`, `shards` | writing | as in bulk_enqueue.py |
| `endpoint_url`, `region` | all | an S3 server other than AWS |

**Reading** takes no claim: rows are what lay there when the frame was first used, as far as it is still there; `load()`
again to see what came since. A batch is a row for each line. What is no record is left out (archive.py counts it).
`archive` has the rows of `records` that were archived, expired or not, at one version of the table; any reader of Delta
Lake sees the same. Spark does not tell a Python source which columns a query uses: `columns` does, and so does a schema
with some of them.

**Filters.** The options `path`, … say what the frame is, and only that is listed and read. With `pushdown`, so do a
query's filters on `path`, `record_key` and the archive's `day`, **for one query of one `load()`**: Spark 4.1.1 keeps
what it has planned for a filter, and uses it for other queries of the same frame, which then lack rows. So this is off
unless it is asked for.

**Writing is no transaction.** A batch may run as soon as it is PUT, long before the job's commit, and an aborted job
takes nothing back. What is promised: a task that is retried adds no batch twice, also when the job is started again
with the same `run`, if the same rows come in the same partition, in any order; other rows are refused, so that none is
left out. A `run` that was committed is not repeated. For more, see bulk_enqueue.py, whose batches do not depend on how
the data was partitioned. **A stream's microbatch** that is repeated, by the same checkpoint, runs nothing twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from s3queue.clock import RandomChance
from spark.source.filters import Wanted
from spark.source.kinds import Target, check_schema, columns_of, flag, kind_of
from spark.source.reading import ArchiveReader, FilteredArchiveReader, FilteredReader, QueueReader
from spark.source.streaming import QueueStreamReader
from spark.source.writing import QueueStreamWriter, QueueWriter, check_rows, former_of, plan_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["QueueDataSource", "Target", "register"]
#: Off by default, and Spark refuses a source that takes filters as long as it is; ours does if it is asked to.
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make `format("s3queue")` known to a session, and allow the option `pushdown`."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(QueueDataSource)


class QueueDataSource(DataSource):
    """`format("s3queue")`; see `register`."""

    @classmethod
    def name(cls) -> str:
        return "s3queue"

    def schema(self) -> StructType:
        return columns_of(self.options, kind_of(self.options)[1])

    def reader(self, schema: StructType) -> DataSourceReader:
        name, kind = kind_of(self.options)
        check_schema(schema, kind)
        target, wanted = Target.of(self.options), Wanted.named(self.options, name)
        pushes = flag(self.options, "pushdown")
        if name == "archive":
            return (FilteredArchiveReader if pushes else ArchiveReader)(target, schema, wanted)
        return (FilteredReader if pushes else QueueReader)(target, name, schema, wanted)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        name, kind = kind_of(self.options)
        check_schema(schema, kind)
        return QueueStreamReader(Target.of(self.options), name, schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        check_rows(schema, overwrite)
        target = Target.of(self.options)
        named = self.options.get("run")
        plan = plan_of(self.options, target, named or f"write-{RandomChance().token()}")
        return QueueWriter(target, plan, former_of(target.bucket.store(), plan) if named else "none")

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:  # noqa: N802 (Spark's name)
        check_rows(schema, overwrite)
        target = Target.of(self.options)
        named = self.options.get("run")
        return QueueStreamWriter(target, plan_of(self.options, target, named or "stream"), bool(named))
