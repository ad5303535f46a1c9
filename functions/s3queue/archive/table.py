"""The archive as a Delta Lake table: which Parquet files count, and how more are added exactly once.

    archive/_delta_log/00000000000000000007.json    the table's version 7, created with If-None-Match
    archive/queue=emails/day=2026-11-16/part-0000000003-{digest}.parquet

A file that no version names does not exist for readers of the table. Each queue counts its own commits in the table
(the application transaction `archive:emails`): of two runs that saw the same count, one commits, and the other reads
again. Other queues' commits and a compaction in between do no harm.

It needs the extra `archive`. The library itself never imports `deltalake`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from s3queue.encoding import NONSENSE, as_text, as_whole, cut, format_instant
from s3queue.errors import AccessDenied, Conflict, CorruptState, InvalidRequest, NewerFormat, Unavailable

from .columns import PARTITIONED_BY, SCHEMA_VERSION, TABLE_COLUMNS
from .parts import Part

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties

#: Where the table lies in the bucket.
FOLDER = "archive/"
#: Looks at a table that others change meanwhile.
TRIES = 5
#: Property of the table: the meaning of its columns.
SCHEMA_PROPERTY = "s3queue.schema"
#: Days that a file is kept after a compaction has replaced it, for those who still read an older version.
KEPT_DAYS = 7
CONFIGURATION = {
    SCHEMA_PROPERTY: str(SCHEMA_VERSION),
    "delta.deletedFileRetentionDuration": f"interval {KEPT_DAYS} days",
    # Opening the table reads the commits since the last checkpoint: a few queues make as many every week.
    "delta.checkpointInterval": "20",
    # Old versions stay: they are small, and no role needs to delete a commit.
    "delta.enableExpiredLogCleanup": "false",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of the table; what others commit meanwhile does not change it."""

    version: int
    table: DeltaTable

    def parts(self, queue: str | None = None, *, since_day: str = "") -> list[Part]:
        """The files that count, by key; of one queue, or from a day on."""
        import pyarrow as pa

        with understood():
            # As Arrow hands it over: deltalake's own tables have fewer methods.
            described = pa.table(cast(Any, self.table.get_add_actions(flatten=True)))
        if not described.num_rows:
            return []
        uncounted = [None] * described.num_rows
        # A file without statistics has no count; if none has, there is no such column.
        counts = described["num_records"].to_pylist() if "num_records" in described.column_names else uncounted
        known = (described[name].to_pylist() for name in ("path", "size_bytes", "partition.queue", "partition.day"))
        parts = [_part(*row) for row in zip(*known, counts, strict=True)]
        return sorted(
            (part for part in parts if (queue is None or part.queue == queue) and part.day >= since_day),
            key=lambda part: part.key,
        )

    def commits(self, queue: str) -> int:
        """How many commits the archive of a queue has; 0: none."""
        with understood():
            return self.table.transaction_version(_application(queue)) or 0

    def columns(self) -> set[str]:
        return {str(field.name) for field in self.table.schema().fields}


@dataclass(frozen=True, slots=True)
class ArchiveTable:
    """The table of one bucket: its place, as a value. Every call looks for credentials anew, so that a run of hours
    can commit."""

    bucket: str
    endpoint_url: str | None = None
    region: str | None = None

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{FOLDER.rstrip('/')}"

    def snapshot(self, version: int | None = None) -> Snapshot | None:
        """The table as it is now, or was at a version; None if there is none yet.

        Raises:
            CorruptState: its log cannot be read. NewerFormat: a newer version wrote it. Unavailable, AccessDenied.
            InvalidRequest: the extra `archive` is not installed.
        """
        need_deltalake()
        from deltalake.exceptions import TableNotFoundError

        with understood():
            try:
                table = self._open(version)
            except TableNotFoundError:
                return None
        return Snapshot(table.version(), _checked(table, self.url))

    def prepared(self) -> Snapshot:
        """The table as it is now, created if there is none, with every column that this version writes.

        Raises: as `snapshot`; Conflict if others always changed it first.
        """
        for _ in range(TRIES):
            found = self.snapshot()
            try:
                if found is None:
                    self._create()
                    continue
                missing = [field for field in TABLE_COLUMNS["fields"] if str(field["name"]) not in found.columns()]
                if not missing:
                    return found
                self._add_columns(found, missing)
            except Conflict:
                continue  # another run did the same: look again
        raise Conflict(f"{self.url}: {TRIES} others changed the table meanwhile; run one archive job at a time")

    def commit(self, seen: Snapshot, queue: str, parts: Sequence[Part], *, committed_at: datetime) -> None:
        """Add the parts as the queue's next commit after those that `seen` has.

        Raises:
            Conflict: another run has made that commit, or the table's columns have changed: look again. It may also be
                this very commit, whose answer was lost.
            Unavailable: unknown whether it was made: look again.
        """
        from deltalake import Transaction
        from deltalake.transaction import AddAction

        modified = int(committed_at.timestamp() * 1000)
        actions = [
            AddAction(
                path=part.key.removeprefix(FOLDER),
                size=part.bytes,
                partition_values={"queue": part.queue, "day": part.day},
                modification_time=modified,
                data_change=True,
                stats=json.dumps({"numRecords": part.rows}),
            )
            for part in parts
        ]
        number = seen.commits(queue) + 1
        told = {"s3queue.queue": queue, "s3queue.commit": number, "s3queue.at": format_instant(committed_at)}
        with understood():
            # The version that was seen, so that everything committed since then is judged.
            table = self._open(seen.version)
            table.create_write_transaction(
                list(actions),
                "append",
                table.schema(),
                list(PARTITIONED_BY),
                commit_properties=committing(told, [Transaction(_application(queue), number)]),
                post_commithook_properties=after_commit(),
            )

    def _open(self, version: int | None = None) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self.url, version=version, storage_options=self._options())

    def _create(self) -> None:
        from deltalake import DeltaTable, Schema

        with understood(exists=True):
            DeltaTable.create(
                self.url,
                Schema.from_json(json.dumps(TABLE_COLUMNS)),
                mode="error",
                partition_by=list(PARTITIONED_BY),
                name="s3queue_archive",
                description="Outcomes of messages, one row each",
                configuration=dict(CONFIGURATION),
                # s3queue.schema is ours.
                raise_if_key_not_exists=False,
                storage_options=self._options(),
                commit_properties=committing({}),
            )

    def _add_columns(self, found: Snapshot, missing: Sequence[dict[str, Any]]) -> None:
        from deltalake import Field

        with understood():
            found.table.alter.add_columns(
                [Field.from_json(json.dumps(field)) for field in missing],
                commit_properties=committing({"s3queue.columns": ",".join(field["name"] for field in missing)}),
                post_commithook_properties=after_commit(),
            )

    def _options(self) -> dict[str, str]:
        """Address and credentials as the store finds them: object_store would look elsewhere, in another order."""
        from s3queue.stores.aws_environment import find_credentials, find_place

        address, region = find_place(self.endpoint_url, self.region)
        known = find_credentials()()
        options = {
            "aws_endpoint": address,
            "aws_region": region,
            "aws_access_key_id": known.access_key,
            "aws_secret_access_key": known.secret_key,
            "aws_conditional_put": "etag",
            "timeout": "60s",
        }
        if known.token:
            options["aws_session_token"] = known.token
        if address.startswith("http://"):
            options["allow_http"] = "true"
        if bundle := os.environ.get("AWS_CA_BUNDLE"):
            # Whom AWS's clients trust here; deltalake looks there alone, and what it says else is the system's.
            os.environ["SSL_CERT_FILE"] = bundle
        return options


def committing(told: dict[str, Any], transactions: Sequence[Any] = ()) -> CommitProperties:
    from deltalake import CommitProperties

    return CommitProperties(custom_metadata=told, app_transactions=list(transactions) or None)


def after_commit() -> PostCommitHookProperties:
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


@contextmanager
def understood(*, exists: bool = False) -> Iterator[None]:
    """What deltalake raises, in our words. `exists`: any error of the table itself may mean that it is there by now."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError as error:
        raise Conflict(f"the archive's table was changed by another run: {cut(error)}") from error
    except (OSError, DeltaError) as error:
        text = cut(error)
        if any(word in str(error) for word in ("AccessDenied", "403 Forbidden", "status 403", "PermissionDenied")):
            raise AccessDenied(f"the archive's table is refused: {text}") from error
        if exists and isinstance(error, DeltaError):
            raise Conflict(f"the archive's table could not be created: {text}") from error
        if isinstance(error, OSError):
            raise Unavailable(f"no clear answer about the archive's table: {text}") from error
        raise CorruptState(f"the archive's table cannot be read: {text}") from error


def need_deltalake() -> None:
    """Raises InvalidRequest, naming the extra, if it is not installed."""
    try:
        import deltalake  # noqa: F401
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as missing:
        raise InvalidRequest(f"the archive needs {missing.name}: pip install 's3queue[archive]'") from None


def _application(queue: str) -> str:
    return f"archive:{queue}"


def _checked(table: DeltaTable, url: str) -> DeltaTable:
    """Raises NewerFormat, CorruptState if the rows of this table are not simply those of its files."""
    protocol = table.protocol()
    if protocol.min_reader_version > 1:
        features = ", ".join(protocol.reader_features or []) or f"reader version {protocol.min_reader_version}"
        raise NewerFormat(f"{url} uses {features}, which s3queue cannot read: another program changed the table")
    metadata = table.metadata()
    try:
        schema = as_whole(int(as_text(metadata.configuration.get(SCHEMA_PROPERTY, "0"))))
    except NONSENSE:
        raise CorruptState(f"{url}: the property {SCHEMA_PROPERTY} is not a number") from None
    if schema > SCHEMA_VERSION:
        raise NewerFormat(f"{url} has schema {schema}, this side knows {SCHEMA_VERSION}: upgrade it")
    if tuple(metadata.partition_columns) != PARTITIONED_BY:
        raise CorruptState(f"{url} is not partitioned by {', '.join(PARTITIONED_BY)}: it is not the archive")
    return table


def _part(path: str, size: int, queue: str, day: str, rows: int | None) -> Part:
    if "://" in path or ".." in path.split("/"):
        raise CorruptState(f"the archive's table names {cut(path)}, which is not a file of it")
    return Part(key=FOLDER + unquote(path), queue=queue, day=day, rows=rows, bytes=size)
