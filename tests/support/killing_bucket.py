"""A bucket that kills whoever writes to it, once: what a lost executor leaves behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark.storage.bucket import Bucket


def killing_bucket(bucket: Bucket, flag: Path, suffix: str, *, after: int = 1) -> Bucket:
    """The process that PUTs the `after`-th object with this suffix dies right after it; `flag` remembers that one did.

    Defined in here, and not by a class of this module, so that it travels to executors, which do not see the tests.
    """
    from spark.storage.bucket import Bucket

    class Store:
        def __init__(self, real: Any) -> None:
            self._real = real
            self._left = after

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def put(self, key: str, *given: Any, **options: Any) -> Any:
            written = self._real.put(key, *given, **options)
            if key.endswith(suffix) and not flag.exists():
                self._left -= 1
                if not self._left:
                    flag.touch()
                    os._exit(9)
            return written

    class Deadly(Bucket):
        def store(self) -> Any:
            return Store(Bucket(self.name, self.endpoint_url, self.region).store())

    return Deadly(bucket.name, bucket.endpoint_url, bucket.region)
