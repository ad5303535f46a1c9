"""The API's routes for flows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from aws_lambda_powertools.event_handler.openapi.params import Path, Query

from s3queue.errors import MessageNotFound, QueueError
from s3queue.flow.flow_states import Flows, FlowState, flow_document

from . import flow_models, requests
from .bucket_view import BucketView
from .parallel import in_parallel
from .resolver import Refused, Resolver

FlowId = Annotated[
    str, Path(pattern=r"^[a-z0-9][a-z0-9-]{0,62}(\.[0-9]{4})?$", description="The flow's id, as in the list.")
]
Cursor = Annotated[str, Query(max_length=1024, description="The `next_cursor` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=requests.MOST_ROWS)]
Reason = Annotated[str, Query(max_length=500, description="Why, for whoever looks at it later.")]
_TAGS = ["flows"]
#: A function has a minute. What a cancellation of many messages does not reach in this time, the sweeper does.
CANCEL_SECONDS = 20.0
#: Flows that are read at the same time: a document has up to 16 MiB, a function 512.
READERS = 4


def register_flows(app: Resolver, view: BucketView, described: Any) -> None:
    """`described` makes the description of a route from the model of its answer."""
    flows = Flows(view.store, clock=view.clock)

    def summary(flow_id: str) -> flow_models.FlowView | None:
        """None: what is left of one whose document is gone. One that cannot be read is shown with the reason."""
        try:
            return flow_models.FlowView(**flow_document(flows.state(flow_id)))
        except MessageNotFound:
            return None
        except QueueError as error:
            return flow_models.FlowView(**flow_document(FlowState.unreadable(flow_id, error)) | {"on_dead": ""})

    @app.get("/api/flows", summary="Flows, the newest first", tags=_TAGS, **described(flow_models.FlowList))
    def flow_list(cursor: Cursor = "", limit: Limit = 50) -> flow_models.FlowList:
        ids = [flow_id for flow_id in flows.ids() if not cursor or flow_id < cursor]
        found = in_parallel(summary, ids[:limit], READERS)
        return flow_models.FlowList(
            flows=[one for one in found if one], next_cursor=ids[limit - 1] if len(ids) > limit else None
        )

    @app.get("/api/flows/<flow_id>", summary="One flow", tags=_TAGS, **described(flow_models.FlowDetail))
    def flow_detail(flow_id: FlowId) -> flow_models.FlowDetail:
        with _known():
            found = flows.show(flow_id)
        nodes = [
            flow_models.FlowNode(
                number=node.number,
                stage=node.stage,
                queue=node.queue,
                path=node.path,
                state=node.state,
                flow_id=node.flow_id,
            )
            for node in found.nodes
        ]
        return flow_models.FlowDetail(**flow_document(found), nodes=nodes)

    ended = described(flow_models.FlowView, changes=True)

    @app.post("/api/flows/<flow_id>/cancel", summary="End a flow", tags=_TAGS, **ended)
    def cancel_flow(flow_id: FlowId, reason: Reason = "") -> flow_models.FlowView:
        with _known():
            return flow_models.FlowView(**flow_document(flows.cancel(flow_id, reason, seconds=CANCEL_SECONDS)))


@contextmanager
def _known() -> Iterator[None]:
    try:
        yield
    except MessageNotFound as error:
        raise Refused(404, "NotFound", str(error), "GET /api/flows lists the flows of the bucket.") from None
