"""Streaming: records and dead letters as they come, each once.

An offset is a place in the order of (LastModified, key): `{"at": …, "key": …}`. S3 dates an object when its PUT begins
and shows it when it ends, in whole seconds, by clocks that differ a little. So a second is only read once it is over by
`settle_seconds`, by the `Date` of the first LIST: by then everything of that second is to be seen, and the order of
what was read never changes. An object that appears later than that with an older date is not read; of a letter of more
than 5 GB the date is that of its first part, so allow for as long as its copy takes.

After a restart Spark does not tell how far the stream has read until the next offset is written down. So whoever raises
`settle_seconds` has to leave the stream stopped for as long as it is raised by; a stream that is started sooner is
refused, because it would go back, and read twice.

What is replaced is a new object with a new date: it is read again, as what it is then. What is gone before it was read
is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from s3queue.encoding import parse_instant
from s3queue.errors import CorruptState, InvalidRequest
from s3queue.store import ObjectInfo
from spark.storage.scan import THREADS, Leaf, leaves

from .filters import Wanted, places
from .kinds import KINDS, Listed, Target, flag, whole
from .reading import in_tasks, read_objects

if TYPE_CHECKING:
    import pyarrow as pa

STREAMED = ("records", "dead")
#: Behind every key: names of queues begin with a letter or a digit.
ALL = "~"
Place = tuple[datetime, str]
_START: Place = (datetime(1970, 1, 1, tzinfo=UTC), "")
_BACKWARDS = (
    "the checkpoint has read up to {first}, and by the present settle_seconds only what is up to {last} has settled: "
    "the option was raised, or S3's clock was set back. What lies between would be read twice. Set settle_seconds "
    "back, or wait for as long as it was raised by. Then delete the last file under offsets/ of the checkpoint, which "
    "has none of its name under commits/, and start again"
)


class QueueStreamReader(DataSourceStreamReader):
    """Lists once for each microbatch; the executors read what is new."""

    def __init__(self, target: Target, kind: str, schema: StructType, options: Mapping[str, str]) -> None:
        if kind not in STREAMED:
            raise InvalidRequest(f"option kind of a stream: {' or '.join(STREAMED)}, not {kind!r}")
        if flag(options, "pushdown"):
            raise InvalidRequest("option pushdown is not for a stream: use path, path_from, path_to, path_prefix")
        self._target = target
        self._kind = kind
        self._wanted = Wanted.named(options, kind)
        self._schema = schema
        # Below two seconds, one that is not over would be read.
        self._settle = timedelta(seconds=whole(options, "settle_seconds", 60, least=2, most=86_400))
        self._most = whole(options, "max_objects", 100_000, least=1, most=10_000_000)
        self._starting = _starting(options)
        #: Up to where everything was read; None after a restart, until Spark tells.
        self._read_until: Place | None = None
        #: What was listed last: all that is behind the first place, up to the second. Spark may ask for it twice.
        self._listed: tuple[Place, Place, list[Listed]] = (_START, _START, [])

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 (Spark's name)
        self._read_until = self._starting
        return _offset(self._starting)

    def latestOffset(self) -> dict[str, str]:  # noqa: N802 (Spark's name)
        start = self._read_until
        settled, found = self._new(start or _START, None)
        if start is None:
            # Nothing that was ever told as an offset is behind this one, unless the option was raised.
            end = max(settled, self._starting)
        elif found:
            end = _place(found[: self._most][-1])
        else:
            end = start
        self._listed = (start or _START, settled, found)
        return _offset(end)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        first, last = _read(start), _read(end)
        if last < first:
            raise InvalidRequest(_BACKWARDS.format(first=first[0].isoformat(), last=last[0].isoformat()))
        known_from, known_until, found = self._listed
        if not (known_from <= first and last <= known_until):
            # A microbatch that is repeated after a restart.
            _, found = self._new(first, last)
        found = [entry for entry in found if first < _place(entry) <= last]
        self._read_until = last
        self._listed = (first, last, found)
        return in_tasks(found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        kind = KINDS[self._kind]
        paths = self._wanted.of("path")
        yield from read_objects(self._target.connect(), kind, self._schema, partition, paths, as_listed=True)

    def _new(self, after: Place, until: Place | None) -> tuple[Place, list[Listed]]:
        """What lies behind a place, in order, and up to where that is certain to be all of it."""
        store, keys = self._target.bucket.store(), self._target.keys
        (kind,) = KINDS[self._kind].prefixes
        prefix = keys.prefix(kind)
        wanted = places(self._kind, [prefix], self._wanted)
        parts, at = leaves(store, prefix)
        settled = (at - self._settle, ALL)
        bound = until or settled

        def of(leaf: Leaf) -> list[Listed]:
            # The date is that of the first LIST, so what it told is listed again: after the date, not with it.
            pages = (Leaf(prefix) if leaf.prefix == prefix else leaf).pages(store)
            found = (entry for page in pages for entry in page.objects if after < _seen(entry) <= bound)
            return [Listed.of(entry) for entry in found if wanted.has(entry.key)]

        with ThreadPoolExecutor(THREADS) as pool:
            found = [entry for part in pool.map(of, parts) for entry in part]
        return settled, sorted(found, key=_place)


def _seen(entry: ObjectInfo) -> Place:
    return entry.modified_at, entry.key


def _place(entry: Listed) -> Place:
    assert entry.modified_at is not None
    return entry.modified_at, entry.key


def _offset(place: Place) -> dict[str, str]:
    return {"at": place[0].astimezone(UTC).isoformat(), "key": place[1]}


def _read(offset: Mapping[str, Any]) -> Place:
    """Raises CorruptState if it is none of ours."""
    try:
        at = datetime.fromisoformat(offset["at"])
        return at.astimezone(UTC), str(offset["key"])
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptState(f"the checkpoint's offset {offset!r} is not one of s3queue: {error}") from None


def _starting(options: Mapping[str, str]) -> Place:
    text = options.get("starting_at", "")
    if not text:
        return _START
    try:
        return parse_instant(text), ""
    except ValueError:
        raise InvalidRequest(f"option starting_at: an instant such as 2026-11-16T10:15:00Z, not {text!r}") from None
