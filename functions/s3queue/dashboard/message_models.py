"""The answers of the API about messages: lists of them, the history of one, and what was done with it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .models import Answer, AnyJson, State


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
