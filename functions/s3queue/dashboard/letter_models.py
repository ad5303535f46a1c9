"""The answers of the API about dead letters: lists, groups by error, and what was done with them."""

from __future__ import annotations

from pydantic import Field

from .models import Answer


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
