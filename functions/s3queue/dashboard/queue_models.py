"""The answers of the API about queues: counts, verdicts, settings, the last hour, workers, what is stuck."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .models import Answer, AnyJson

Health = Literal["healthy", "idle", "paused", "stuck", "behind", "failing", "unswept", "unknown"]


class Counts(Answer):
    pending: int = Field(description="Messages: a batch counts as its lines, here and in all counts below.")
    delayed: int
    processing: int
    failed: int = Field(description="Failed at least once, and waiting for the next attempt.")
    completed: int
    dead: int
    oldest_seconds: float | None
    newest_seconds: float | None
    finished_per_minute: int | None
    rescued: int | None = Field(
        description="Messages that the sweeper handed to a worker in the last hour, because their events were lost or "
        "late; null: no sweeper has counted."
    )
    exact: bool = Field(description="False: a count stopped at its page limit and is a lower bound.")
    at_least: list[str] = Field(
        default=[],
        description="Counts that are lower bounds, because a batch does not say how many lines it has: its name is not "
        "the library's, or its letter was not read.",
    )
    pending_objects: int = Field(default=0, description="Pending and delayed, as objects: a batch is one.")
    processing_objects: int = Field(default=0, description="Processing and failed, as objects.")
    finished_objects: int = Field(default=0, description="Completed and dead, as objects.")
    journaled_objects: int = Field(
        default=0, description="Of the finished ones, messages of groups and partitions: their outcomes share journals."
    )
    journals: int = Field(default=0, description="How many journals these outcomes lie in.")
    acknowledged: int = Field(description="Dead letters that an operator acknowledged; `health` does not count them.")
    busy_seconds: float | None = Field(description="Age of the oldest object of an unfinished message.")
    total: int
    at: str


class Cost(Answer):
    dollars: float = Field(description="The least that the messages on record have cost in S3 requests.")
    formula: str


class QueueView(Answer):
    name: str
    health: Health
    reason: str
    paused: bool
    swept_at: str | None = Field(description="When a sweeper last published its count; null: never.")
    stats: Counts | None = Field(description="null: the queue could not be read; `reason` says why.")
    published: Counts | None = Field(description="The sweeper's last count, if `stats` is a lower bound.")
    cost: Cost | None
    breaker: str = Field(description="closed, open, probing, forced open or forced closed.")


class Verdict(Answer):
    health: Health
    reason: str


class BreakerView(Answer):
    queue: str
    state: Literal["closed", "open", "probing"]
    forced: bool = Field(description="An operator wants it so: nothing that happens changes it.")
    failures: int = Field(description="In a row, while it is closed.")
    error: str = Field(description="The last failure that it counted.")
    opened_at: str | None
    until: str | None = Field(description="When the next message probes, or the probe's time is over.")


class Queues(Answer):
    at: str
    bucket: str
    verdict: Verdict
    totals: dict[str, int]
    cost: Cost
    queues: list[QueueView]
    next_cursor: str | None


class Setting(Answer):
    name: str
    value: AnyJson = Field(description="Seconds for a duration, bytes for a size.")
    shown: str = Field(description="For people: `5 min`, `64 MiB`.")
    origin: Literal["default", "definition", "queue.json"]


class SettingsSource(Answer):
    by: Literal["deployment", "worker"]
    at: str


class QueueDetail(QueueView):
    settings: dict[str, AnyJson] = Field(description="As they apply.")
    effective: list[Setting] = Field(description="The same, with the origin of each.")
    published_settings: SettingsSource | None = Field(
        description="Who published the settings of the definition; null: nobody, unless this API has the definition."
    )
    overrides: dict[str, AnyJson] = Field(description="The settings that queue.json changes at run time.")
    has_partitions: bool = Field(description="It has `partitions`, or a group has messages or a lease.")


class Minute(Answer):
    at: str
    entered: int
    finished: int
    died: int


class Flow(Answer):
    at: str
    minutes: list[Minute] = Field(description="The last hour, oldest minute first; the last minute is not over yet.")
    entered_per_minute: float = Field(description="Average of the last five whole minutes.")
    finished_per_minute: float
    drain_seconds: float | None = Field(
        description="Seconds until nothing is pending at these rates; null: the queue does not drain."
    )
    exact: bool = Field(description="False: not all objects were read, and the rates are lower bounds.")
    unknown_entries: int = Field(description="Finished messages whose names do not show when they were enqueued.")


class StuckLease(Answer):
    path: str
    state: str
    owner: str
    attempt: int
    age_seconds: float
    reason: str


class WorkerView(Answer):
    id: str
    started_at: str
    seen_at: str
    is_fresh: bool
    holds: list[str]
    stats: dict[str, int]


class Run(Answer):
    name: str
    modified_at: str
    age_seconds: float
    size: int
    document: AnyJson = Field(description="The content of the run's object; null if it is not JSON.")


class Stuck(Answer):
    at: str
    leases: list[StuckLease]
    silent_workers: list[WorkerView]
    stale_runs: list[Run]
    oldest_dead_seconds: float | None
    exact: bool


class Paused(Answer):
    queue: str
    paused: bool


class Workers(Answer):
    workers: list[WorkerView]
