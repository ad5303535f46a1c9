"""The answers of the API about searches, the live tail and edited messages."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from .message_models import MessageRow
from .models import Answer, AnyJson
from .requests import Request, is_storable


class Found(Answer):
    messages: list[MessageRow]
    looked_at: int = Field(description="Messages that were looked at.")
    reads: int = Field(description="GETs and HEADs that this took, beside its LISTs.")
    unread: int = Field(description="Payloads that could not be searched: gone, larger than 64 KiB, or not JSON.")
    complete: bool = Field(description="False: it stopped at its bound, and there are more to look at.")
    next_cursor: str | None = Field(description="Pass it as `cursor` to go on; null: all were looked at.")


class TailEvent(Answer):
    at: str
    state: str = Field(description="What the message has become: processing, waiting, completed, dead or cancelled.")
    path: str
    attempt: int | None
    worker: str | None
    error: str | None
    size: int | None


class Tail(Answer):
    at: str = Field(description="Pass it as `after` for what comes next; S3 dates by the second, so events may repeat.")
    events: list[TailEvent] = Field(description="The oldest first.")
    missed: int = Field(description="Events that were too many to be read.")


class Edited(Request):
    path: str = Field(min_length=10, max_length=1024, description="Of the dead letter.")
    body: AnyJson = Field(description="The new payload. Text is stored unchanged, anything else as JSON.")

    @field_validator("body")
    @classmethod
    def _is_storable(cls, body: Any) -> Any:
        return is_storable(body)


class Replaced(Answer):
    path: str = Field(description="The message that it has become.")
