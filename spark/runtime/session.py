"""One Spark session, the same on EMR Serverless and on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: On a laptop a short job is mostly the JVM warming up: 40 % less CPU without its second compiler.
LOCAL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: For any place; what EMR's request says goes before it.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Several messages at a time share the executors evenly.
    "spark.scheduler.mode": "FAIR",
    # What Java hands to Python at once: so many rows, or so many bytes. By rows alone, a few hundred messages of some
    # megabytes are more than the 2 GiB that a column of an Arrow batch can hold, and several times that in memory.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
}
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.extraJavaOptions": LOCAL_JVM,
    # Only here: whoever sets it must see to it that workers find it before our code is sent to them.
    "spark.python.daemon.module": "spark.runtime.worker_daemon",
}


def build_session(name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process.

    Under `spark-submit` everything is decided already; without it, Spark is started here, on `master` (`local[*]`).

    Raises:
        NoJava: Spark would have to be started here, and there is no Java for it.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ.update(local_environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    chosen = dict(SETTINGS)
    if not submitted:
        builder = builder.master(master or "local[*]")
        chosen |= LOCAL_SETTINGS
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def local_environment() -> dict[str, str]:
    """What a Spark on this machine needs to know: its Java, this Python for its executors too, where our code is."""
    import s3queue
    import spark

    python = sys.executable
    code = [str(Path(module).resolve().parent.parent) for module in (s3queue.__file__, str(spark.__file__))]
    known = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PYTHONPATH": os.pathsep.join([*code, *known]),
    }
