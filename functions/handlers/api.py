"""The API function: the REST API and the dashboard's page, behind a function URL that requires IAM signatures."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import queues
from s3queue.connect import open_store
from s3queue.dashboard.api import build
from s3queue.dashboard.resolver import Resolver
from s3queue.settings import Deployment

from .telemetry import is_starting, start_logging


@cache
def api() -> Resolver:
    """Made once. It shows only the deployed queues, because its role cannot list the rest of the bucket."""
    start_logging()
    deployment = Deployment.from_env(os.environ)
    store, _ = open_store(f"s3://{deployment.bucket}")
    defined = {name: queues.load_one(name).settings for name in deployment.workers}
    return build(store, defined=defined, discover=False)


def handle(event: Any, context: Any) -> dict[str, Any]:
    """The answer to one request; never raises."""
    return api().answer(event, context)


if is_starting():
    api()
