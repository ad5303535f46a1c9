"""The answers of the API about Spark runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .models import Answer
from .queue_models import Run


class RunView(Run):
    kind: Literal["run", "slot", "other"] = Field(
        description="slot: the place that a run takes while it is active; other: not ours, or it cannot be read."
    )
    state: str = Field(
        description="Of a run: launching, running, closed or failed. Of a slot: launching, started or cooling."
    )
    shown: str = Field(default="", description="The state for people: Running, Ended, Silent, Taken, Cooling.")
    run: str = Field(default="", description="The id of the run, which is also its job's name on EMR Serverless.")
    started_at: str | None = None
    duration_seconds: float | None = Field(
        default=None, description="Until it ended, or until now; of one that was killed, until its last sign of life."
    )
    counts: dict[str, int] = Field(default={}, description="How many messages ended in which way.")
    claimed: int = Field(default=0, description="Messages of the present round.")
    begun: int = Field(default=0, description="How many of them may have been started.")
    rounds: int = 0
    slot: int | None = None
    job: str = Field(default="", description="EMR's id of the job, while the run has its slot.")
    note: str = Field(default="", description="Why it failed, or why no run could be started.")
    paths: list[str] = Field(default=[], description="The first messages of the present round.")
    is_silent: bool = Field(default=False, description="It has not ended, and has given no sign of life for long.")
    logs: str | None = Field(default=None, description="Where its log lines are, in AWS's console.")


class Runs(Answer):
    runs: list[RunView] = Field(description="The newest first.")
    exact: bool = Field(description="False: there are more, older ones.")
