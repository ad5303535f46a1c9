"""What the API is asked for: bodies that are checked before anything is read or written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator, model_validator

from .models import AnyJson

MOST_ROWS = 200
MOST_REPLAYS = 500
#: Beyond this a delay is a typing error, and dates run out of digits.
LONGEST_SECONDS = 10 * 365 * 86_400
_FARTHEST = datetime(9000, 1, 1, tzinfo=UTC)
_METADATA_NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"

Seconds = Annotated[float, Field(ge=0, le=LONGEST_SECONDS, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=1000)]


class Request(BaseModel):
    #: A misspelt option must not be ignored: `dry_rum` would replay for real.
    model_config = ConfigDict(extra="forbid", strict=False)


class Enqueue(Request):
    body: AnyJson = Field(description="Text is stored as it is, anything else as JSON.")
    priority: Annotated[int, Field(ge=0, le=255, strict=True)] = 0
    delay_seconds: Annotated[float, Field(ge=0, le=LONGEST_SECONDS, strict=True)] | None = None
    due_at: AwareDatetime | None = Field(default=None, description="Not before this instant; with a time zone.")
    dedup_id: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        default=None,
        description="Written only if no message with this id is there. With a delay, give `due_at`: the due time "
        "is part of what makes two messages the same.",
    )
    metadata: Annotated[
        dict[
            Annotated[str, Field(pattern=_METADATA_NAME)],
            Annotated[str, Field(max_length=256)],
        ],
        Field(
            max_length=8,
            json_schema_extra={"propertyNames": {"pattern": _METADATA_NAME}, "patternProperties": None},
        ),
    ] = {}

    @field_validator("body")
    @classmethod
    def _is_storable(cls, body: Any) -> Any:
        try:
            json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            raise ValueError("not storable: NaN, infinity, half a surrogate pair, or nested too deep") from None
        return body

    @field_validator("due_at")
    @classmethod
    def _is_on_the_calendar(cls, due_at: datetime | None) -> datetime | None:
        try:
            if due_at is None or due_at.astimezone(UTC) < _FARTHEST:
                return due_at
        except OverflowError:
            pass
        raise ValueError("no instant that a key can hold")

    @model_validator(mode="after")
    def _has_one_time(self) -> Enqueue:
        if self.delay_seconds is not None and self.due_at is not None:
            raise ValueError("delay_seconds or due_at, not both")
        return self


class Replay(Request):
    """One dead letter by its path, or all that a filter selects."""

    path: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    error_type: Text | None = None
    older_than_seconds: Seconds | None = None
    newer_than_seconds: Seconds | None = None
    cursor: Annotated[str, Field(max_length=1024)] = ""
    limit: Annotated[int, Field(ge=1, le=MOST_REPLAYS, strict=True)] = MOST_REPLAYS
    dry_run: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _is_one_or_filtered(self) -> Replay:
        filters = (self.error_type, self.older_than_seconds, self.newer_than_seconds)
        if self.path is not None and any(one is not None for one in filters):
            raise ValueError("a path or a filter, not both")
        return self
