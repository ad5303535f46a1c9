"""The answers of the API about partitions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .models import Answer


class PartitionFailure(Answer):
    type: str
    message: str


class PartitionView(Answer):
    partition: str = Field(description="As in the keys of its messages: `@customer-42`, or `@=3` for a share.")
    group: str | None = Field(description="The group's name; null for a share of `partitions`.")
    state: Literal["free", "open", "held", "overdue", "corrupt"] = Field(
        description="open: nobody holds it, and messages that failed wait. overdue: its worker's lease has run out."
    )
    messages: int
    exact: bool = Field(description="False: there are more than were counted.")
    first_at: str | None = Field(description="When its first message, in the order of names, was enqueued.")
    worker: str | None = Field(description="Who holds it, or held it last.")
    written_at: str | None
    until: str | None = Field(description="When the lease runs out, unless its holder renews it.")
    taken: int = Field(description="Messages that the holder has taken.")
    waiting: int = Field(description="Messages that failed, and wait for another attempt.")
    next_at: str | None
    next_path: str | None
    failure: PartitionFailure | None
    problem: str | None


class Partitions(Answer):
    at: str
    partitions: list[PartitionView]
    exact: bool = Field(
        description="False: there are so many leases that some partitions without messages are left out."
    )
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null: this is the last page.")
