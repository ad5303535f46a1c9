"""The API's routes for schedules."""

from __future__ import annotations

from typing import Annotated, Any

from aws_lambda_powertools.event_handler.openapi.params import Body, Path

from s3queue.flow.schedules import ScheduleState, schedule, schedule_document

from . import requests
from .bucket_view import BucketView
from .resolver import Resolver
from .schedule_models import Removed, Schedules, ScheduleView

QueueName = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="The queue's name.")]
ScheduleName = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="The schedule's name.")]
_TAGS = ["schedules"]


def register_schedules(app: Resolver, view: BucketView, described: Any) -> None:
    """`described` makes the description of a route from the model of its answer."""
    at = "/api/queues/<queue>/schedules"

    def shown(state: ScheduleState) -> ScheduleView:
        return ScheduleView(**schedule_document(state))

    @app.get(at, summary="Schedules, with their next five times", tags=_TAGS, **described(Schedules))
    def schedules(queue: QueueName) -> Schedules:
        return Schedules(schedules=[shown(one) for one in view.queue(queue).schedules.list()])

    changed = described(ScheduleView, changes=True)

    @app.put(f"{at}/<name>", summary="Make or change a schedule", tags=_TAGS, **changed)
    def put_schedule(
        queue: QueueName, name: ScheduleName, wanted: Annotated[requests.Schedule, Body()]
    ) -> ScheduleView:
        made = schedule(
            wanted.cron,
            name=name,
            tz=wanted.tz,
            body=wanted.body,
            priority=wanted.priority,
            missed=wanted.missed,
        )
        return shown(view.queue(queue).schedules.add(made))

    @app.post(f"{at}/<name>/pause", summary="Let no more messages come", tags=_TAGS, **changed)
    def pause_schedule(queue: QueueName, name: ScheduleName) -> ScheduleView:
        return shown(view.queue(queue).schedules.pause(name))

    @app.post(f"{at}/<name>/resume", summary="Let messages come again", tags=_TAGS, **changed)
    def resume_schedule(queue: QueueName, name: ScheduleName) -> ScheduleView:
        return shown(view.queue(queue).schedules.resume(name))

    @app.delete(f"{at}/<name>", summary="Remove a schedule", tags=_TAGS, **described(Removed, changes=True))
    def remove_schedule(queue: QueueName, name: ScheduleName) -> Removed:
        view.queue(queue).schedules.remove(name)
        return Removed(name=name)
