"""The request bodies of the API, which are checked before anything is read or written."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from s3queue.encoding import EARLIEST, LATEST

from .models import AnyJson

MOST_ROWS = 200
MOST_REPLAYS = 500
#: A longer delay is a mistake.
LONGEST_SECONDS = 10 * 365 * 86_400
#: A dedup id counts at most as long as its queue keeps records; this is less, unless someone lowered that.
LONGEST_DEDUP = 86_400
#: What surely has at most 512 bytes when it is quoted for a key: a schema cannot say that otherwise.
_GROUP = r"^([\s\S]{1,42}|[ -~]{1,170}|[A-Za-z0-9._~-]{1,512})$"
_WITH_A_GROUP: Any = {
    "properties": {"priority": {"enum": [0]}, "delay_seconds": {"type": "null"}, "due_at": {"type": "null"}}
}
_METADATA_NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"


def _is_number(value: Any) -> Any:
    if isinstance(value, (bool, str)):
        raise ValueError("must be a whole number")
    return value


def _is_text(value: Any) -> Any:
    if value is not None and not isinstance(value, str):
        raise ValueError("must be an instant as text, such as 2026-11-16T10:15:00Z")
    return value


#: As in JSON: 3 and 3.0 are the same whole number; "3" is not a number.
WHOLE = BeforeValidator(_is_number)
Instant = Annotated[AwareDatetime, BeforeValidator(_is_text)]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_SECONDS, allow_inf_nan=False, strict=True)]
Text = Annotated[str, Field(max_length=1000)]
Message = Annotated[str, Field(min_length=1, max_length=2000)]


def _given(**types: str) -> dict[str, Any]:
    """A JSON Schema that requires all of these fields, not null."""
    return {"required": list(types), "properties": {name: {"type": kind} for name, kind in types.items()}}


def is_storable(body: Any) -> Any:
    """The body, unless no message can have it."""
    try:
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise ValueError("cannot be stored: NaN, infinity, half a surrogate pair, or nested too deeply") from None
    return body


class Request(BaseModel):
    #: A misspelt option must not be ignored: with `dry_rum`, letters would be replayed.
    model_config = ConfigDict(extra="forbid", strict=False)


class Enqueue(Request):
    model_config = ConfigDict(
        json_schema_extra={
            "not": _given(delay_seconds="number", due_at="string"),
            "anyOf": [{"properties": {"dedup_for_seconds": {"type": "null"}}}, _given(dedup_id="string")],
            "allOf": [{"anyOf": [{"properties": {"group": {"type": "null"}}}, _WITH_A_GROUP]}],
        }
    )

    body: AnyJson = Field(description="Text is stored unchanged, anything else as JSON.")
    priority: Annotated[int, Field(ge=0, le=255), WHOLE] = 0
    delay_seconds: Seconds | None = None
    due_at: Instant | None = Field(default=None, description="The message runs not before this instant (with zone).")
    dedup_id: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        default=None,
        description="The message is written only if no message with this id is in the queue. With a delay, use "
        "`due_at`: the same id with another due time is another message.",
    )
    dedup_for_seconds: Annotated[float, Field(ge=1, le=LONGEST_DEDUP, allow_inf_nan=False, strict=True)] | None = Field(
        default=None,
        description="With a `dedup_id`: the id counts for this long after its first use, by S3's clock, also "
        "when its message is finished; at most a day, and the queue's `record_retention`.",
    )
    metadata: Annotated[
        dict[
            Annotated[str, Field(pattern=_METADATA_NAME)],
            Annotated[str, Field(max_length=256)],
        ],
        Field(
            max_length=8,
            # pydantic writes patternProperties, which allows every other name.
            json_schema_extra={
                "propertyNames": {"pattern": _METADATA_NAME},
                "additionalProperties": {"type": "string", "maxLength": 256},
            },
        ),
    ] = {}

    group: Annotated[str, Field(min_length=1, max_length=512, json_schema_extra={"pattern": _GROUP})] | None = Field(
        default=None,
        description="Messages of one group run one at a time, in the order in which they were enqueued; without "
        "priority, delay and due time. Up to 42 characters, 170 of ASCII, or 512 letters, digits and `._~-`.",
    )

    @field_validator("body")
    @classmethod
    def _is_storable(cls, body: Any) -> Any:
        return is_storable(body)

    @field_validator("group")
    @classmethod
    def _is_group(cls, group: str | None, info: ValidationInfo) -> str | None:
        if group is None:
            return None
        if not re.fullmatch(_GROUP, group):
            raise ValueError("is too long: up to 42 characters, 170 of ASCII, or 512 letters, digits and ._~-")
        given = info.data
        if given.get("priority") or given.get("delay_seconds") is not None or given.get("due_at") is not None:
            raise ValueError("a message with a group has no priority and no delay: a group runs in the order of names")
        return group

    @field_validator("due_at")
    @classmethod
    def _is_one_instant(cls, due_at: datetime | None, info: ValidationInfo) -> datetime | None:
        if due_at is not None and info.data.get("delay_seconds") is not None:
            raise ValueError("give delay_seconds or due_at, not both")
        if due_at is None:
            return None
        try:
            at = due_at.astimezone(UTC)
        except OverflowError:  # in UTC, it is before the first or after the last day of the calendar
            at = LATEST if due_at.year > LATEST.year // 2 else EARLIEST
        # Long ago means at once, and what no key can name comes as late as one can.
        return min(max(at, EARLIEST), LATEST)


class Schedule(Request):
    cron: Annotated[str, Field(min_length=9, max_length=200)] = Field(
        description="Five fields: minute, hour, day, month, weekday, such as `15 9 * * 1-5`."
    )
    tz: Annotated[str, Field(min_length=1, max_length=100)] = "UTC"
    body: AnyJson = Field(default=None, description="Text is stored unchanged, anything else as JSON.")
    priority: Annotated[int, Field(ge=0, le=255), WHOLE] = 0
    missed: Literal["last", "all", "skip"] = "last"


class ForceBreaker(BaseModel):
    """An operator's word on a breaker."""

    model_config = ConfigDict(extra="forbid")

    state: Literal["open", "closed", "auto"] = Field(description="auto: closed, and opens by itself again.")


class Replay(Request):
    """One dead letter by its path, or all letters that a filter selects."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "anyOf": [
                    _given(path="string", error_type="string"),
                    _given(path="string", older_than_seconds="number"),
                    _given(path="string", newer_than_seconds="number"),
                    _given(path="string", message="string"),
                ]
            }
        }
    )

    path: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    error_type: Text | None = None
    older_than_seconds: Seconds | None = None
    newer_than_seconds: Seconds | None = None
    cursor: Annotated[str, Field(max_length=1024)] = ""
    limit: Annotated[int, Field(ge=1, le=MOST_REPLAYS), WHOLE] = MOST_REPLAYS
    dry_run: Annotated[bool, Field(strict=True)] = False
    to: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")] | None = Field(
        default=None, description="Another queue that they go to; of a batch, then, all its dead lines."
    )
    message: Message | None = Field(default=None, description="A group: the normalised form, or any text of it.")

    @field_validator("error_type", "older_than_seconds", "newer_than_seconds", "message")
    @classmethod
    def _is_no_filter_of_one(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("path") is not None:
            raise ValueError("give a path or a filter, not both")
        return value


_SELECTING: Any = [
    _given(error_type="string"),
    _given(message="string"),
    {"required": ["everything"], "properties": {"everything": {"const": True}}},
]


class _Group(Request):
    """Dead letters of a group, or all of them; never all by mistake."""

    error_type: Text | None = None
    message: Message | None = Field(default=None, description="A group: the normalised form, or any text of it.")
    everything: Annotated[bool, Field(strict=True, description="Every dead letter, if no filter is given.")] = False
    cursor: Annotated[str, Field(max_length=1024)] = ""
    limit: Annotated[int, Field(ge=1, le=MOST_REPLAYS), WHOLE] = MOST_REPLAYS


class DeleteLetters(_Group):
    """Dead letters that go for good; of a batch, the lines of the group."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                *_SELECTING,
                _given(older_than_seconds="number"),
                _given(newer_than_seconds="number"),
            ]
        }
    )

    older_than_seconds: Seconds | None = None
    newer_than_seconds: Seconds | None = None
    dry_run: Annotated[bool, Field(strict=True)] = False


class Acknowledge(_Group):
    """Dead letters that stay, and count no more; what dies later counts again."""

    model_config = ConfigDict(json_schema_extra={"anyOf": _SELECTING})

    undo: Annotated[bool, Field(strict=True, description="They count again.")] = False
