"""RunMemory: how much memory the driver and the executors of a Spark run have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .errors import InvalidRequest

MIB = 1024 * 1024
#: Of the driver and of each executor.
CORES = 2
#: EMR Serverless gives a worker of two cores from 4 to 16 GB, in whole ones.
LEAST_GB, MOST_GB = 4, 16
#: Spark refuses to start with less heap; Python, Arrow and boto3 alone take most of the other.
LEAST_HEAP_MIB, LEAST_PYTHON_MIB = 512, 384
#: What a row of `per_batch` takes at its worst, for each core, in payloads. Java reads it, copies it into a row, caches
#: it, and hands it to Python, in buffers that double as they grow; Python has it as bytes and as Arrow.
COPIES_IN_JAVA, COPIES_IN_PYTHON = 16, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """In MiB: the heap of Java, and what is beside it, which is Python's (`memoryOverhead`).

    All payloads go through Python. Unless it is told otherwise, EMR gives Python a tenth of the heap.
    """

    driver_heap: int = 2048
    driver_python: int = 3072
    executor_heap: int = 2048
    executor_python: int = 3072

    def __post_init__(self) -> None:
        for place in ("driver", "executor"):
            heap, python = getattr(self, f"{place}_heap"), getattr(self, f"{place}_python")
            for name, value, least in (("memory", heap, LEAST_HEAP_MIB), ("python", python, LEAST_PYTHON_MIB)):
                if isinstance(value, bool) or not isinstance(value, int) or value < least:
                    raise InvalidRequest(
                        f"{place}_{name}_mib must be a whole number of at least {least}, not {value!r}"
                    )
            if heap + python > MOST_GB * 1024:
                raise InvalidRequest(
                    f"{place}_memory_mib and {place}_python_mib must be at most {MOST_GB * 1024} together, not "
                    f"{heap + python}: EMR Serverless gives a worker of {CORES} vCPU up to {MOST_GB} GB"
                )

    @property
    def driver_gb(self) -> int:
        """What the driver is billed for."""
        return _billed(self.driver_heap + self.driver_python)

    @property
    def executor_gb(self) -> int:
        """What each executor is billed for."""
        return _billed(self.executor_heap + self.executor_python)

    @property
    def largest_in_batch(self) -> int:
        """Bytes of the largest payload that a `per_batch` job can be given without running out of memory."""
        return min(self.executor_heap // COPIES_IN_JAVA, self.executor_python // COPIES_IN_PYTHON) * MIB // CORES

    def too_small_for(self, payload: int) -> str:
        """What to do about a payload of so many bytes that `per_batch` cannot be given; empty if it can be."""
        if payload <= self.largest_in_batch:
            return ""
        mib = -(-payload // MIB) * CORES
        heap, python = mib * COPIES_IN_JAVA, mib * COPIES_IN_PYTHON
        present = f"it has executor_memory_mib={self.executor_heap} and executor_python_mib={self.executor_python}"
        # The way out first: texts are cut where they are kept.
        if heap + python > MOST_GB * 1024:
            return f"write the job with per_stream, no executor has enough ({present})"
        needed = f"executor_memory_mib={heap} and executor_python_mib={python}"
        return f"write the job with per_stream, or give it {needed} ({present})"

    @classmethod
    def of_session(cls, setting: Callable[[str, str], str | None]) -> RunMemory:
        """As a run was started, by `setting(name, default)` of its session."""
        usual = cls().spark_settings()

        def mib(name: str) -> int:
            said = setting(name, usual[name]) or usual[name]
            # Sizes that someone else has chosen in other words are not ours to know.
            return int((said if said.endswith("m") else usual[name]).removesuffix("m"))

        return cls(
            driver_heap=mib("spark.driver.memory"),
            driver_python=mib("spark.driver.memoryOverhead"),
            executor_heap=mib("spark.executor.memory"),
            executor_python=mib("spark.executor.memoryOverhead"),
        )

    def spark_settings(self) -> dict[str, str]:
        """As Spark knows them."""
        return {
            "spark.driver.cores": str(CORES),
            "spark.driver.memory": f"{self.driver_heap}m",
            "spark.driver.memoryOverhead": f"{self.driver_python}m",
            "spark.executor.cores": str(CORES),
            "spark.executor.memory": f"{self.executor_heap}m",
            "spark.executor.memoryOverhead": f"{self.executor_python}m",
        }


def _billed(mib: int) -> int:
    return max(LEAST_GB, -(-mib // 1024))
