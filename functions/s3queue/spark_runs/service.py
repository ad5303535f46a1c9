"""JobService: the port through which runs are started and asked after; EMR Serverless is behind it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Protocol

from s3queue.errors import QueueError
from s3queue.settings import QueueSettings

#: `starting`: asked for, its driver does not run yet. `ended`: it never will again.
Phase = Literal["starting", "running", "ended"]


class NotStarted(QueueError):
    """The service said no (throttled, over quota, not allowed): surely nothing was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A run to start. Equal requests of one run are one job, however often they are sent."""

    run: str
    queue: str
    bucket: str
    timeout: timedelta
    max_executors: int

    @classmethod
    def of(cls, run: str, queue: str, bucket: str, settings: QueueSettings) -> JobRequest:
        return cls(
            run=run, queue=queue, bucket=bucket, timeout=settings.run_timeout, max_executors=settings.max_executors
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the service knows it."""

    id: str
    run: str
    #: Empty if the job is not one of ours.
    queue: str
    phase: Phase
    #: The service's own words.
    state: str
    details: str = ""


class JobService(Protocol):
    """Where runs run.

    Raises, from every method:
        Unavailable: no answer; a job may or may not have been started.
        AccessDenied: grant the permission that it names.
    """

    def start(self, request: JobRequest) -> str:
        """The job's id; the same one for the same run.

        Raises:
            NotStarted: surely nothing was started.
        """
        ...

    def get(self, job: str) -> Job | None:
        """None: there is no such job."""
        ...

    def find(self, run: str, *, since: datetime) -> Job | None:
        """The job of a run, started after `since`, if its id is not known."""
        ...

    def cancel(self, job: str) -> None: ...
