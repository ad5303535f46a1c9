"""A fact: what statistics need of a record, as a narrow row. Made where records are read, so Java sees nothing else.

Waiting ends when the first attempt starts, and begins when the message may run (a delayed one: when it is due). Running
is the attempt that decided. Everything belongs to the hour in which it finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import types

from s3queue.encoding import EARLIEST
from spark.rows.record_rows import READ_SCHEMA
from spark.rows.schemas import columns, joined

if TYPE_CHECKING:
    import pyarrow as pa

_AS_THEY_ARE = ("queue", "messages", "completed", "dead", "attempt", "size", "worker", "dead_by_type")
#: Columns of a record that a fact is made of.
READ = (*_AS_THEY_ARE, "finished_at", "attempts", "enqueued_at", "due_at")
FACTS = joined(
    types.StructType([READ_SCHEMA[name] for name in _AS_THEY_ARE]),
    columns(
        hour="timestamp",
        failed_types="strings",
        wait_seconds="double",
        run_seconds="double",
        #: Of an object that is no record: why, and its key.
        problem="string",
        problem_key="string",
        #: Of what is read as an object: when S3 stored it, against its worker's time.
        skew_seconds="double",
    ),
)
_HOUR = 3_600_000_000


def facts_of(batch: pa.RecordBatch, *, keep: Sequence[str] = ()) -> pa.RecordBatch:
    """The facts of records with the columns READ; objects may have `problem`, `record_key` and `modified_at`, too.

    A row without a time at which it finished is left out, unless it is a problem. Columns to `keep` come last.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql.pandas.types import to_arrow_schema

    problem = _column(batch, "problem", pa.string())
    is_known = pc.greater_equal(_micros(batch.column("finished_at")), pa.scalar(int(EARLIEST.timestamp() * 1e6)))
    is_wanted = pc.or_(pc.is_valid(problem), pc.fill_null(is_known, False))
    batch = batch.filter(is_wanted)
    finished, problem = _micros(batch.column("finished_at")), _column(batch, "problem", pa.string())
    first, last, failed = _attempts(batch.column("attempts"))
    ready = pc.max_element_wise(*(_micros(batch.column(name)) for name in ("enqueued_at", "due_at")))
    stored = _micros(_column(batch, "modified_at", pa.timestamp("us", "UTC")))
    key = _column(batch, "record_key", pa.string())
    made = {
        "hour": pc.multiply(pc.divide(finished, _HOUR), _HOUR).cast(pa.timestamp("us", "UTC")),
        "failed_types": failed,
        "wait_seconds": _seconds(ready, first),
        "run_seconds": _seconds(*last),
        "problem": problem,
        "problem_key": pc.if_else(pc.is_valid(problem), key, pa.scalar(None, pa.string())),
        "skew_seconds": pc.divide(pc.subtract(finished, stored).cast(pa.float64()), 1e6),
    }
    schema = to_arrow_schema(FACTS)
    arrays = [made[field.name] if field.name in made else batch.column(field.name) for field in schema]
    arrays += [batch.column(name) for name in keep]
    return pa.RecordBatch.from_arrays(arrays, [*schema.names, *keep])


def _attempts(attempts: Any) -> tuple[Any, tuple[Any, Any], Any]:
    """When the first one started; when the last one started and ended; the types of errors of those that failed."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets, each = attempts.offsets.to_numpy(), attempts.values
    is_none = (offsets[1:] == offsets[:-1]) | attempts.is_null().to_numpy(zero_copy_only=False)
    # Nowhere, if there is none.
    first, last = (pa.array(found, mask=is_none) for found in (offsets[:-1], offsets[1:] - 1))
    started, ended = (_micros(pc.struct_field(each, name)) for name in ("started_at", "ended_at"))
    types = pc.struct_field(each, "error_type")
    is_failed = pc.is_valid(types)
    passed = np.concatenate([[0], np.cumsum(is_failed.to_numpy(zero_copy_only=False))])[offsets]
    failed = pa.ListArray.from_arrays(pa.array(passed, pa.int32()), types.filter(is_failed))
    return started.take(first), (started.take(last), ended.take(last)), failed


def _column(batch: pa.RecordBatch, name: str, kind: Any) -> Any:
    import pyarrow as pa

    return batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows, kind)


def _micros(instants: Any) -> Any:
    import pyarrow as pa

    return instants.cast(pa.timestamp("us", "UTC")).cast(pa.int64())


def _seconds(start: Any, end: Any) -> Any:
    """Never negative: the two instants may be from two machines' clocks. No attempt is no duration."""
    import pyarrow as pa
    import pyarrow.compute as pc

    micros = pc.subtract(end, start)
    return pc.if_else(pc.less(micros, 0), 0.0, pc.divide(micros.cast(pa.float64(), safe=False), 1e6))
