"""Bucket: which bucket, as a value that travels to executors; each process there keeps one client for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from s3queue.printable import clean_last_resort
from s3queue.store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from s3queue.archive.table import ArchiveTable

_SETTING = "s3queue.bucket."


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, and where its server is. Without an endpoint, boto3's own environment says (`AWS_ENDPOINT_URL`)."""

    name: str
    endpoint_url: str | None = None
    region: str | None = None

    def note(self, spark: SparkSession) -> None:
        """Tell every job of a session which bucket it works in."""
        for name in ("name", "endpoint_url", "region"):
            spark.conf.set(f"{_SETTING}{name}", getattr(self, name) or "")

    @classmethod
    def of(cls, spark: SparkSession) -> Bucket:
        """The bucket that the session works in."""
        name, endpoint, region = (spark.conf.get(f"{_SETTING}{name}") for name in ("name", "endpoint_url", "region"))
        assert name
        return cls(name, endpoint or None, region or None)

    def store(self) -> ObjectStore:
        """The bucket as a store; one per process, threads share it."""
        return _store(self)

    def archive(self) -> ArchiveTable:
        """The archive's table; for the driver alone."""
        from s3queue.archive.table import ArchiveTable

        return ArchiveTable(self.name, self.endpoint_url, self.region)

    def client(self) -> Any:
        """boto3's client, for what is no queue object: datasets, and files in parts."""
        return _client(self)


# Every executor comes here first, and nobody else configures its log, in which strangers' names appear.


@lru_cache(maxsize=8)
def _client(bucket: Bucket) -> Any:
    from s3queue.stores.s3 import client

    clean_last_resort()
    return client(bucket.endpoint_url, bucket.region)


@lru_cache(maxsize=8)
def _store(bucket: Bucket) -> ObjectStore:
    from s3queue.connect import open_store

    clean_last_resort()
    # Executors do little else than ask for small objects: the client's CPU is theirs.
    kind: Any = os.environ.get("S3QUEUE_STORE", "direct")
    return open_store(f"s3://{bucket.name}", endpoint_url=bucket.endpoint_url, region=bucket.region, store=kind)[0]
