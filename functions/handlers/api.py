"""The API function: the REST API and the dashboard's page, behind a function URL that requires IAM signatures."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from s3queue.connect import open_store
from s3queue.dashboard.api import build
from s3queue.dashboard.console import Console
from s3queue.dashboard.resolver import Resolver, Role
from s3queue.deployment import Deployment
from s3queue.worker.application import Application

from .telemetry import is_starting, start_logging


@cache
def api(role: Role) -> Resolver:
    """Made once. Only the deployed queues: the role cannot list the rest of the bucket."""
    start_logging()
    deployment = Deployment.from_env(os.environ)
    store, _ = open_store(f"s3://{deployment.bucket}")
    application = Application()
    defined = {name: application.load_one(name).settings for name in deployment.workers}
    # An emulator has no console.
    region = "" if os.environ.get("AWS_ENDPOINT_URL") else os.environ.get("AWS_REGION", "")
    console = Console(region=region, spark_log_group=deployment.spark_log_group)
    return build(store, defined=defined, discover=False, role=role, console=console)


def handle(event: Any, context: Any) -> dict[str, Any]:
    """The answer to one request of an operator; never raises."""
    return api("operator").answer(event, context)


def read(event: Any, context: Any) -> dict[str, Any]:
    """The answer to one request of a reader: no change, no payload; never raises."""
    return api("reader").answer(event, context)


if is_starting():
    api("reader" if os.environ.get("_HANDLER", "").endswith(".read") else "operator")
