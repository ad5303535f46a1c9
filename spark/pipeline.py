"""The entry point of the pipeline on EMR Serverless: `pipeline.py archive --bucket B …` starts one of its jobs."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence

JOBS = ("archive", "statistics", "bulk_enqueue", "replay")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job with the arguments that follow its name; what it returns."""
    parser = argparse.ArgumentParser(prog="pipeline", description=__doc__)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the job's own; `pipeline.py archive --help`")
    chosen = parser.parse_args(argv)
    # Here: under spark-submit the paths to our own code are set by then.
    from s3queue.printable import log_to_stderr

    log_to_stderr(logging.INFO, "%(asctime)s %(levelname)s %(name)s %(message)s")
    # It tells of every closed connection.
    logging.getLogger("py4j").setLevel(logging.ERROR)
    job = importlib.import_module(f"spark.{chosen.job}")
    return int(job.main(chosen.arguments))


if __name__ == "__main__":
    sys.exit(main())
