"""The parent of Spark's Python workers on this machine: pyspark's own daemon, with everything loaded that they need.

Workers are forked from it, so that seconds of imports are spent once, and not by each of them. And Spark's own archives
leave the path: pyspark is installed here. Before every task a worker has its import caches invalidated, and Python 3.11
then reads the directory of a zip again for each package that came out of it: nearly all the CPU of a short task.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from pathlib import PurePath
from typing import Any

ARCHIVES = (".jar", "pyspark.zip", "-src.zip")
NEEDED = (
    *("pandas", "pyarrow.csv", "pyarrow.json", "pyarrow.parquet"),
    *("s3queue.stores.s3", "spark.datasets.reading", "spark.datasets.files"),
)


def main() -> None:
    sys.path[:] = [entry for entry in sys.path if not PurePath(entry).name.endswith(ARCHIVES)]
    for entry in [entry for entry in sys.path_importer_cache if entry not in sys.path]:
        del sys.path_importer_cache[entry]
    # Importing starts no thread and opens no connection: safe to fork.
    for name in NEEDED:
        import_module(name)
    daemon: Any = import_module("pyspark.daemon")
    # A worker collects its garbage after every task: none of this is any.
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
