"""Deployment: one installation on AWS, as infra describes it to its functions, and the numbers that both need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from .errors import CorruptState, InvalidRequest
from .keys import check_queue

#: How long one invocation of the sweeper runs. The next one starts a little later, so that two rarely meet.
SWEEPER_STAYS_SECONDS = 54.0
SWEEPER_MIB = 512
#: How many queues one sweeper function has: its role has room for so many with long names, and each of them gets its
#: time. Measured (`make bench`): if all of them have work, a queue is looked at within ten seconds, usually within two.
QUEUES_PER_SWEEPER = 31
#: Where Lambda puts the records of invocations that it gave up on, by function; the form is documented, not ours to
#: choose.
FAILED_INVOCATIONS = "aws/lambda/async/"
#: Which metrics of its own each queue has: all of them, those that alarms watch, or none.
Metrics = Literal["all", "alarms", "off"]
ALARM_METRICS = ("AgeOfOldest", "Pending", "Dead")
METRICS: Mapping[str, tuple[str, ...]] = {
    "all": (
        *ALARM_METRICS,
        *("Completed", "Failed", "Retried", "Rescued", "ClaimConflicts", "LateEvents", "WaitTime", "RunTime"),
    ),
    "alarms": ALARM_METRICS,
    "off": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One installation: its bucket, the queue that this function serves, and the worker function of every queue."""

    bucket: str
    #: The queue that this function serves; empty in the sweeper and the API, which serve all.
    queue: str = ""
    #: Queue name → name of its worker function; empty for a queue that only pull workers serve.
    workers: Mapping[str, str]
    #: The EMR Serverless application and the role of its jobs; empty if Spark is not deployed.
    spark_application: str = ""
    spark_role: str = ""
    #: What a run executes (the driver's file, our code as a zip, its packages), and where it logs to.
    spark_entry_point: str = ""
    spark_code: str = ""
    spark_packages: str = ""
    spark_logs: str = ""
    spark_log_group: str = ""
    #: The region of the bucket, which a run's processes have to be told.
    spark_region: str = ""
    #: The EventBridge bus that events are published to; empty: none.
    event_bus: str = ""
    #: The bus that hears of Spark runs that failed; empty: another function publishes that, or nobody does.
    run_event_bus: str = ""

    def __post_init__(self) -> None:
        if not self.bucket:
            raise InvalidRequest("a deployment needs a bucket: set S3QUEUE_BUCKET")
        for queue in self.workers:
            check_queue(queue)

    def to_env(self) -> dict[str, str]:
        """The environment variables that infra gives a function."""
        return {f"S3QUEUE_{name.upper()}": value for name, value in self._texts().items() if value}

    def _texts(self) -> dict[str, str]:
        texts = {field.name: getattr(self, field.name) for field in fields(self)}
        return texts | {"workers": json.dumps(self._workers(), sort_keys=True, separators=(",", ":"))}

    def _workers(self) -> dict[str, str | list[str]]:
        """By what comes before the queue's name, where it is the end of the function's: a function has 4 KB for all of
        its variables, and a hundred queues.
        """
        short: dict[str, list[str]] = {}
        whole: dict[str, str | list[str]] = {}
        for queue, function in self.workers.items():
            if function.endswith(f"-{queue}"):
                short.setdefault(function.removesuffix(queue), []).append(queue)
            else:
                whole[queue] = function
        return {**whole, **short}

    @classmethod
    def from_env(cls, environment: Mapping[str, str]) -> Deployment:
        """The deployment, read back from a function's environment.

        Raises:
            CorruptState: the environment was not written by `to_env`.
        """
        found = {field.name: environment.get(f"S3QUEUE_{field.name.upper()}", "") for field in fields(cls)}
        try:
            workers = json.loads(found.pop("workers") or "{}")
            if not isinstance(workers, dict):
                raise TypeError(f"S3QUEUE_WORKERS is {workers!r}, not a JSON object")
            return cls(workers=_named(workers), **found)
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptState(f"the S3QUEUE_ variables of this function cannot be read: {error}") from error


def _named(workers: Mapping[str, str | list[str]]) -> dict[str, str]:
    """Queue → function, from `{queue: function}`, or from `{"s3queue-": [queue, …]}` for those that begin alike."""
    named: dict[str, str] = {}
    for name, value in workers.items():
        if isinstance(value, str):
            named[name] = value
        else:
            named |= {queue: f"{name}{queue}" for queue in value}
    return named
