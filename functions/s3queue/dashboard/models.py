"""The answers of the API, which make most of its OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

Health = Literal["healthy", "idle", "paused", "stuck", "behind", "failing", "unswept", "unknown"]
State = Literal["pending", "delayed", "processing", "waiting", "burying", "completed", "dead", "cancelled", "corrupt"]
Listed = Literal["pending", "delayed", "processing", "waiting", "completed", "dead", "cancelled"]

#: Any JSON value, described so that a client generator need not guess.
AnyJson = Annotated[Any, WithJsonSchema({})]


class Answer(BaseModel):
    """Answers contain every field, also those that are null."""


class FieldProblem(Answer):
    field: str
    message: str


class Problem(Answer):
    error: str = Field(description="The name of the error, such as MessageNotFound or QueueFull.")
    message: str = Field(description="What happened.")
    way_out: str = Field(description="What to do about it.")
    fields: list[FieldProblem] = Field(default=[], description="Which fields of the request are wrong, and why.")
    suggestions: list[str] = Field(default=[], description="Of an unknown queue: names that look like it.")


class Counts(Answer):
    pending: int
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


class MessageRow(Answer):
    path: str
    state: State
    priority: int
    size: int | None
    since: str = Field(description="When it got its state: was enqueued, claimed, failed or finished.")
    due_at: str | None = None
    attempt: int | None = None
    worker: str | None = None
    error: str | None = None
    lines: int | None = Field(default=None, description="Messages in it, if it is a batch, and that is known.")
    dead_lines: int = Field(default=0, description="Of a batch that has ended: lines that died.")


class Messages(Answer):
    messages: list[MessageRow]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null: this is the last page.")


class Body(Answer):
    text: str | None = Field(description="The payload as text; null if it is not UTF-8.")
    base64: str | None = Field(description="The payload in base64, if it is not text.")
    size: int
    truncated: bool = Field(description="True: only the first 64 KiB are returned.")
    content_type: str
    metadata: dict[str, str]


class MessageLife(Answer):
    path: str
    state: State
    enqueued_at: str | None
    size: int | None
    priority: int
    due_at: str | None
    attempts: list[dict[str, AnyJson]]
    attempt: int | None = None
    worker: str | None = None
    claimed_at: str | None = None
    retry_at: str | None = None
    failure: dict[str, str] | None = None
    progress: list[AnyJson] | None = None
    finished_at: str | None = None
    result: AnyJson = None
    result_error: str | None = None
    kept_payload: str | None = Field(default=None, description="The key of a completed message's payload, if kept.")
    logs: dict[str, str] = Field(default={}, description="Worker → where its log lines are, in AWS's console.")
    lines: dict[str, AnyJson] | None = None
    problem: str | None = None
    body: Body | None = Field(default=None, description="Only with `body=1`.")


class Enqueued(Answer):
    path: str
    created: bool = Field(description="False: a message with this dedup_id exists already, and nothing was written.")


class DeadView(Answer):
    path: str
    size: int
    died_at: str
    error_type: str
    error: str
    attempts: int
    worker: str
    lines: int
    enqueued_at: str | None
    message: str = Field(description="The error's normalised text, which names its group; of a batch, its first one's.")
    acknowledged: bool


class DeadPage(Answer):
    letters: list[DeadView]
    next_cursor: str | None


class ErrorGroup(Answer):
    error_type: str
    message: str = Field(description="Numbers, ids, quoted parts, addresses, URLs and keys are `*`.")
    count: int = Field(description="A batch counts as its lines.")
    acknowledged: int = Field(description="How many of them an operator has acknowledged.")
    example: str = Field(description="The newest error text.")
    example_path: str
    samples: list[str] = Field(description="Paths of some letters, newest first.")
    oldest_at: str
    newest_at: str


class Errors(Answer):
    groups: list[ErrorGroup]
    read: int
    exact: bool = Field(description="False: there are more dead letters than were read.")


class Failed(Answer):
    path: str
    error: str
    message: str


class Replayed(Answer):
    dry_run: bool
    selected: int
    replayed: int
    failed: list[Failed]
    next_cursor: str | None = Field(
        description="There may be more: call again with this `cursor`; null: these were all."
    )
    examples: list[str] = Field(description="Some of the selected paths.")


class Deleted(Answer):
    path: str


class DeletedLetters(Answer):
    dry_run: bool
    selected: int
    deleted: int = Field(description="Less than `selected` if some died anew, or were replayed, meanwhile.")
    next_cursor: str | None = Field(
        description="There may be more: call again with this `cursor`; null: these were all."
    )
    examples: list[str] = Field(description="Some of the selected paths.")


class Acknowledged(Answer):
    selected: int = Field(description="Dead letters that the request selected.")
    acknowledged: int = Field(description="Dead letters of the queue that are acknowledged now.")
    next_cursor: str | None = Field(
        description="There may be more: call again with this `cursor`; null: these were all."
    )


class Cancelled(Answer):
    path: str
    outcome: Literal["completed", "dead", "cancelled"] = Field(
        description="`cancelled`, unless the message was finished before: then that outcome stands."
    )


class Retried(Answer):
    path: str
    state: State
    attempt: int = Field(description="How often it was tried.")
    max_attempts: int
    attempts_left: int
    retry_at: str | None = Field(description="From when on it may be tried: now.")
    failure: dict[str, str] | None = Field(description="Why the last attempt failed.")


class Released(Answer):
    path: str
    worker: str = Field(description="Who held it.")
    attempt: int = Field(description="The attempt that was not used.")
    claimed_at: str


class Paused(Answer):
    queue: str
    paused: bool


class ScheduleView(Answer):
    name: str
    cron: str = Field(description="Five fields: minute, hour, day, month, weekday.")
    tz: str
    body: str | None = Field(description="The payload of every message, as text; null for a reader.")
    priority: int
    missed: str = Field(description="Of times that passed while nobody swept: last, all (at most 100), or skip.")
    source: str = Field(description="code: the queue's definition has it; runtime: an operator made it.")
    paused: bool
    after_at: str = Field(description="The last time that was decided on.")
    next_at: list[str] = Field(description="The next five times; none if it is paused.")
    problem: str = Field(description="Why it is not due, e.g. a time zone that is unknown here.")


class Schedules(Answer):
    schedules: list[ScheduleView]


class Removed(Answer):
    name: str


class Workers(Answer):
    workers: list[WorkerView]
