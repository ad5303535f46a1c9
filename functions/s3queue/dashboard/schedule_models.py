"""The answers of the API about schedules."""

from __future__ import annotations

from pydantic import Field

from .models import Answer


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
