"""The OpenAPI document is checked in and true: schemathesis sends what it allows and what it forbids."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from s3queue import Flow
from s3queue.dashboard import api
from s3queue.dashboard.server import KEY_HEADER, Server
from s3queue.stores.memory import MemoryStore
from support.sample_bucket import working_hour
from support.workbench import Workbench

CHECKED_IN = Path(api.__file__).parent / "openapi.json"


def test_the_document_in_the_package_is_current() -> None:
    current = api.document(api.build(MemoryStore()))
    assert json.loads(CHECKED_IN.read_text()) == current, "write it anew: python -m s3queue.dashboard"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    bench = Workbench()
    working_hour(bench)
    flow = Flow(bench.queue("orders"), id="order-17")
    flow.add("orders", {})
    flow.start()
    with Server(api.build(bench.memory)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


schema = schemathesis.openapi.from_dict(json.loads(CHECKED_IN.read_text()))


@schema.parametrize()
@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
def test_the_api_does_what_its_document_says(case: schemathesis.Case, server: Server) -> None:
    # Most names name nothing; with these, requests get as far as the queues.
    if case.path_parameters.get("queue") is not None and len(str(case.path_parameters["queue"])) % 2:
        case.path_parameters["queue"] = ("orders", "emails", "invoices")[len(str(case.query)) % 3]
    if len(str(case.path_parameters.get("flow_id", ""))) % 2:
        case.path_parameters["flow_id"] = "order-17"
    headers = {KEY_HEADER: server.key, "x-s3queue": "1"}
    case.call_and_validate(
        base_url=server.address,
        headers=headers,
        excluded_checks=[positive_data_acceptance] if _is_about_one(case) else [],
    )


def _is_about_one(case: schemathesis.Case) -> bool:
    """What names no message or flow is well-formed, and still a 404 or 409; no schema tells what a cron line is."""
    return "path" in (case.query or {}) or "/schedules/" in case.path or "/flows/" in case.path
