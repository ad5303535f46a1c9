"""What all answers of the API share; they make most of its OpenAPI document, a module for each resource."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

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
