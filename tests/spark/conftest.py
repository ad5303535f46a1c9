"""One Spark session per test run: it costs ten seconds, and its tests share one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from s3queue.stores.s3 import client
from support.s3_servers import fresh_bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.storage.bucket import Bucket

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # pyspark.testing loads pandas-on-Spark, which asks for it.
    os.environ.setdefault("PYARROW_IGNORE_TIMEZONE", "1")
    from spark.runtime.session import build_session

    session = build_session("tests", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def bucket(seaweedfs_endpoint: str) -> Bucket:
    """An empty bucket of a real S3 server that executors reach too."""
    from spark.storage.bucket import Bucket

    return Bucket(fresh_bucket(client(seaweedfs_endpoint)), seaweedfs_endpoint, "us-east-1")


# First, because pytest-xdist reads the marks in this same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
