"""JobService: the interface that starts Spark jobs and asks for their state; EMR Serverless implements it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, Protocol

from s3queue.encoding import Json
from s3queue.errors import QueueError
from s3queue.run_memory import RunMemory
from s3queue.settings import QueueSettings

#: `starting`: asked for, but its driver does not run yet. `ended`: it will not run any more.
Phase = Literal["starting", "running", "ended"]


class NotStarted(QueueError):
    """The service refused (throttled, over quota, not allowed), or was not asked: certainly nothing was started."""


#: The settings that say what a run is asked for.
_ASKED = (
    *("run_timeout_seconds", "max_executors"),
    *("driver_memory_mib", "driver_python_mib", "executor_memory_mib", "executor_python_mib"),
)


def asked_of(settings: QueueSettings) -> dict[str, Json]:
    """What `JobRequest.of` needs to make the same request again, whatever the settings are by then."""
    described = settings.to_json()
    return {name: described[name] for name in _ASKED}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A run to start. Equal requests for one run are one job, however often they are sent."""

    run: str
    queue: str
    bucket: str
    timeout: timedelta
    max_executors: int
    memory: RunMemory = field(default_factory=RunMemory)

    @classmethod
    def of(
        cls, run: str, queue: str, bucket: str, settings: QueueSettings, asked: Mapping[str, Json] | None = None
    ) -> JobRequest:
        """`asked`: as it was asked for before, by `asked_of`. It is checked as settings are: anyone may write it.

        Raises:
            InvalidRequest: no queue can have these settings.
        """
        if asked:
            settings = settings.with_overrides({name: asked[name] for name in _ASKED if name in asked})
        return cls(
            run=run,
            queue=queue,
            bucket=bucket,
            timeout=settings.run_timeout,
            max_executors=settings.max_executors,
            memory=settings.run_memory,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the service knows it."""

    id: str
    run: str
    #: Empty if the job is not one of ours.
    queue: str
    phase: Phase
    #: It ended, and its driver says that all is well.
    succeeded: bool = False
    #: The state as the service names it.
    state: str
    details: str = ""


class JobService(Protocol):
    """Where runs run.

    Raises, from every method:
        Unavailable: no answer, or a question was refused; a job may or may not have been started.
        AccessDenied: grant the permission that it names.
    """

    def start(self, request: JobRequest) -> str:
        """The job's id; the same one for the same run.

        Raises:
            NotStarted: certainly nothing was started.
        """
        ...

    def get(self, job: str) -> Job | None:
        """The job; None if there is no such job."""
        ...

    def find(self, run: str, *, since: datetime) -> Job | None:
        """A job of a run, started after `since`, for a run whose job id is not known; of two, either."""
        ...

    def cancel(self, job: str) -> None: ...
