"""flows list | show | cancel: the flows of a bucket, and how far each has come."""

from __future__ import annotations

from typing import Annotated

import typer

from s3queue.cli.command import command, group, program
from s3queue.cli.output import table
from s3queue.cli.session import Session
from s3queue.cli.words import clean, when
from s3queue.flow.flow_states import Flows, flow_document

flows = group("Flows: messages that belong together, and the steps that come after them.")
program.add_typer(flows, name="flows", rich_help_panel="Messages")
FlowId = Annotated[str, typer.Argument(metavar="ID", help="The flow's id, as `flows list` shows it.")]


@command(flows, "flows list --limit 20", name="list")
def list_(
    ctx: typer.Context, limit: Annotated[int, typer.Option(min=1, max=1000, help="So many at most.")] = 50
) -> None:
    """List the latest flows: their state, how many members have an outcome, and which step is at work.

    JSON: a list of id, state (running, completed, failed, cancelled; unknown: it cannot be read), on_dead, members,
    done, steps, stage, started_at, ended_at, reason, problem.
    """
    session = Session.of(ctx)
    store = session.store()
    found = Flows(store).list(limit)
    now = store.list("flows/", limit=1).at
    rows = [
        [one.id, one.state, f"{one.done}/{one.members}", f"{one.stage}/{one.steps}", when(one.started_at, now)]
        if one.started_at
        else [one.id, one.state, "", "", ""]
        for one in found
    ]
    columns = ["flow", "state", ">members done", ">step", "started"]
    session.answer([flow_document(one) for one in found], table(columns, rows) if rows else "no flows")
    for one in found:
        if one.problem:
            session.note(clean(f"flow {one.id} cannot be read: {one.problem}"))


@command(flows, "flows show order-17")
def show(ctx: typer.Context, flow_id: FlowId) -> None:
    """Show one flow with all of its messages.

    JSON: as `flows list`, and nodes: a list of number, stage (0: a member, else which step), queue, path, state
    (waiting, completed, dead, cancelled), flow_id (of a flow within).
    """
    session = Session.of(ctx)
    found = Flows(session.store()).show(flow_id)
    nodes = [
        {
            "number": node.number,
            "stage": node.stage,
            "queue": node.queue,
            "path": node.path,
            "state": node.state,
            "flow_id": node.flow_id,
        }
        for node in found.nodes
    ]
    rows = [
        [
            f"step {node.stage}" if node.stage else f"member {node.number}",
            node.state,
            f"flow {node.flow_id}" if node.flow_id else f"{node.queue}/{node.path}",
        ]
        for node in found.nodes
    ]
    session.answer(flow_document(found) | {"nodes": nodes}, table(["of the flow", "state", "~message"], rows))
    reason = f": {found.reason}" if found.reason else ""
    session.note(f"{found.id} is {found.state}{reason}; {found.done} of {found.members} members have an outcome")


@command(flows, "flows cancel order-17")
def cancel(
    ctx: typer.Context,
    flow_id: FlowId,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks at it later.")] = "",
) -> None:
    """End a flow: no further step comes, and what waits or is at work is cancelled. One that has ended stays as it is.

    JSON: as one of `flows list`.
    """
    session = Session.of(ctx)
    found = Flows(session.store()).cancel(flow_id, reason)
    session.done(flow_document(found), f"{found.id} is {found.state}")
