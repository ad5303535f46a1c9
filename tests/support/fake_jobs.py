"""Jobs in memory: what EMR Serverless does with requests for runs, and how it fails to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from s3queue.errors import Unavailable
from s3queue.spark_runs.service import Job, JobRequest, NotStarted, Phase


@dataclass
class FakeJobs:
    """No stronger than the service: it may throttle, lose an answer, or never hear the request."""

    #: Token → request: how many jobs were really started.
    started: dict[str, JobRequest] = field(default_factory=dict)
    phases: dict[str, tuple[Phase, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    #: Second jobs of a run, whose token was forgotten, or that someone started by hand: job → run.
    copies: dict[str, str] = field(default_factory=dict)
    #: Called before a start; raises what the service would say.
    before: Callable[[JobRequest], None] = lambda request: None
    #: The same, after the job was started: a lost answer.
    after: Callable[[JobRequest], None] = lambda request: None

    def start(self, request: JobRequest) -> str:
        self.asked.append(request.run)
        self.before(request)
        known = self.started.setdefault(request.run, request)
        assert known == request, "a token that is repeated with another request is refused"
        self.phases.setdefault(f"job-{request.run}", ("starting", "SUBMITTED"))
        self.after(request)
        return f"job-{request.run}"

    def copy(self, run: str, phase: Phase = "starting", state: str = "SUBMITTED") -> str:
        """Start a second job of a run."""
        job = f"copy-{len(self.copies)}-of-{run}"
        self.copies[job], self.phases[job] = run, (phase, state)
        return job

    def get(self, job: str) -> Job | None:
        request = self.started.get(self.copies.get(job, job.removeprefix("job-")))
        if request is None:
            return None
        phase, state = self.phases[job]
        return Job(
            id=job,
            run=request.run,
            queue=request.queue,
            phase=phase,
            succeeded=state == "SUCCESS",
            state=state,
            details="said the service",
        )

    def find(self, run: str, *, since: datetime) -> Job | None:
        """Of two jobs, the second."""
        return self.get(next((job for job, of in self.copies.items() if of == run), f"job-{run}"))

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)

    def becomes(self, phase: Phase, state: str) -> str:
        """Every job that has not ended; the last one's id."""
        moved = [job for job, (was, _) in self.phases.items() if was != "ended"]
        self.phases |= dict.fromkeys(moved, (phase, state))
        return moved[-1]


def throttled(request: JobRequest) -> None:
    raise NotStarted("StartJobRun: ThrottlingException: Rate exceeded")


def silent(request: JobRequest) -> None:
    raise Unavailable("StartJobRun: no answer")
