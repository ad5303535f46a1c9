"""The answers of the API about flows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .models import Answer


class FlowView(Answer):
    id: str
    state: Literal["running", "completed", "failed", "cancelled", "unknown"] = Field(
        default="unknown", description="unknown: it cannot be read; `problem` says why."
    )
    on_dead: Literal["continue", "fail", ""] = Field(
        default="", description="fail: a dead or cancelled message ends the flow."
    )
    members: int = 0
    done: int = Field(default=0, description="How many members have an outcome, whichever.")
    steps: int = 0
    stage: int = Field(default=0, description="Which step is at work, or was when it ended; 0: the members are.")
    started_at: str | None = None
    ended_at: str | None = None
    reason: str = Field(default="", description="Why it failed or was cancelled.")
    problem: str = ""


class FlowList(Answer):
    flows: list[FlowView]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null: this is the last page.")


class FlowNode(Answer):
    number: int = Field(description="Members are counted from 0, the steps after them.")
    stage: int = Field(description="0: a member; else which step.")
    queue: str
    path: str
    state: Literal["waiting", "completed", "dead", "cancelled"] = Field(
        description="waiting: it has no outcome yet, or its turn has not come."
    )
    flow_id: str = Field(description="If it is a flow within this one: its id.")


class FlowDetail(FlowView):
    nodes: list[FlowNode]
