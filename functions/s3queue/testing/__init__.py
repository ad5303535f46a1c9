"""s3queue.testing: run a handler, or a whole application, in a test: no server, no waiting, no S3.

    from s3queue.testing import Sent, run

`pytest_plugins = ["s3queue.testing.plugin"]` in a conftest.py adds the fixtures `bucket` and `clock`.
"""

from .bucket import MemoryBucket
from .clock import VirtualClock
from .handled import Run, run
from .sent import Sent

__all__ = ["MemoryBucket", "Run", "Sent", "VirtualClock", "run"]
