"""The entry point of a run: `drain.py --bucket B --queue Q --run R --seconds S`, as the launcher asks for it."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("spark.drain")
#: Of a `per_batch` job at one time: while the last messages of one run, the next ones use the cores that are free.
QUERIES = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the heavy messages of one queue; 0 unless the run itself, not one of its messages, came to grief."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--seconds", type=float, default=3600.0, help="start nothing more after this time")
    chosen = parser.parse_args(argv)
    # Here: under spark-submit the paths to our own code are set by then.
    from s3queue.printable import log_to_stderr

    log_to_stderr(logging.INFO, "%(asctime)s %(levelname)s %(name)s %(message)s")
    # It tells of every closed connection.
    logging.getLogger("py4j").setLevel(logging.ERROR)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    return drain(chosen.bucket, chosen.queue, chosen.run, seconds=chosen.seconds, should_stop=stopping.is_set)


def drain(bucket: str, queue: str, run: str, *, seconds: float, should_stop: Callable[[], bool]) -> int:
    import queues
    from s3queue.connect import connect
    from s3queue.run_memory import RunMemory
    from spark import jobs
    from spark.heavy.batches import BatchWork
    from spark.heavy.driver import Driver, Work
    from spark.heavy.messages import MessageWork
    from spark.heavy.run_manifest import NotOurs, RunLost
    from spark.heavy.streams import StreamDefinition, at_once
    from spark.runtime.session import build_session
    from spark.storage.bucket import Bucket

    definition = queues.load_one(queue)
    job = jobs.load(queue)
    connected = connect(f"s3://{bucket}/{queue}", settings=definition.settings, worker_id=run)
    # What its handler's function may do, a run may, and no more.
    connected.sends_to, connected.flows = definition.sends_to, definition.flows
    connected.refresh()
    definition.events.pass_on(connected.events)
    spark = build_session(f"s3queue {queue} {run}")
    where = Bucket(bucket)
    where.note(spark)
    alive = _alive(spark)
    work: Work
    if job.per_batch:
        queries = min(QUERIES, connected.settings.concurrency)
        memory = RunMemory.of_session(spark.sparkContext.getConf().get)
        work = BatchWork(job.per_batch, spark, where, memory=memory, queries=queries, is_alive=alive)
    elif job.per_stream:
        streams = StreamDefinition(connected, job.per_stream, spark, where)
        parallel = at_once(spark, connected.settings)
        work = MessageWork(connected, streams, spark, parallel=parallel, is_alive=alive)
    else:
        assert job.per_message
        parallel = connected.settings.concurrency
        work = MessageWork(connected, job.per_message, spark, parallel=parallel, is_alive=alive)
    try:
        counts = Driver(connected, work, seconds=seconds, should_stop=should_stop).drain()
    except NotOurs as error:
        _log.warning("nothing to do: %s", error)
        return 0
    except RunLost as error:
        _log.error("run lost to another driver: %s", error)
        return 1
    finally:
        _stop(spark)
    _log.info("%s: %s: %s", queue, run, counts)
    return 0


def _alive(spark: SparkSession) -> Callable[[], bool]:
    def is_alive() -> bool:
        try:
            context: Any = spark.sparkContext
            return not context._jsc.sc().isStopped()
        except Exception:
            return False

    return is_alive


def _stop(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception as error:
        _log.info("Spark session already stopped: %s", error)


if __name__ == "__main__":
    sys.exit(main())
