"""What each function imports: a cold start pays for every package, so a new one must be meant."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

import pytest

import infra
import queues
from s3queue.deployment import Deployment

OURS = {"handlers", "s3queue"}
#: What Lambda tells every function.
LAMBDA = {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
#: Powertools' Logger and EphemeralMetrics, and what they bring along; of botocore only its name and version.
POWERTOOLS = {"aws_lambda_powertools", "jmespath", "typing_extensions", "botocore"}
BOTO3 = {"boto3", "botocore", "s3transfer", "jmespath", "urllib3", "dateutil", "six"}
#: By setting: the SDK, or none.
STORES: dict[str, set[str]] = {"boto3": BOTO3, "direct": set()}
#: boto3 takes these along where they are installed.
IF_THERE = {"awscrt", "_awscrt", "certifi"}
PYDANTIC = {"pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
EMAIL_VALIDATOR = {"email_validator", "idna"}


def loaded(module: str, **environment: str) -> set[str]:
    """The modules that importing one brings into a fresh process."""
    code = f"import sys, {module}; print(*sys.modules)"
    paths = ":".join([str(infra.FUNCTIONS), *{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}])
    # Without `site`: what a developer's environment imports at its start is not the handler's.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": paths} | LAMBDA | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def imported(module: str, **environment: str) -> set[str]:
    """The packages, other than the standard library, that importing a module brings into a fresh process."""
    packages = {name.partition(".")[0] for name in loaded(module, **environment)}
    own = sys.stdlib_module_names | {"__main__", "__mp_main__"}
    return {name for name in packages if name not in own and not name.startswith("_sysconfigdata")}


def started(module: str, queue: str = "", *, store: str) -> set[str]:
    """The same in Lambda's init phase, with all that a deployment may have: a Spark application, X-Ray."""
    deployment = Deployment(
        bucket="bucket", queue=queue, workers={name: f"s3queue-{name}" for name in queues.load()}, spark_application="a"
    )
    environment = {"AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand", "AWS_XRAY_DAEMON_ADDRESS": "127.0.0.1:2000"}
    return imported(f"handlers.{module}", S3QUEUE_STORE=store, **deployment.to_env(), **environment) - IF_THERE


@pytest.mark.parametrize(
    "module",
    ["s3queue.worker.invocation", "s3queue.worker.notifications", "s3queue.spark_runs.runs", "handlers.tracing"],
)
def test_a_part_of_a_worker_imports_nothing_but_this_repository(module: str) -> None:
    assert imported(module) <= OURS


@pytest.mark.parametrize("module", ["worker", "sweeper"])
def test_a_function_imports_no_sdk_before_it_starts(module: str) -> None:
    assert imported(f"handlers.{module}") == OURS | POWERTOOLS


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("worker", {"sweeper", "worker.pull_worker", "protocol.locks", "protocol.dead_letters", "protocol.status"}),
        ("sweeper", {"worker.pull_worker", "worker.processor", "worker.invocation", "protocol.dead_letters"}),
        ("api", {"sweeper", "worker.pull_worker", "worker.processor", "worker.invocation"}),
    ],
)
def test_a_function_imports_no_room_that_it_never_enters(module: str, unused: set[str]) -> None:
    assert loaded(f"handlers.{module}").isdisjoint(f"s3queue.{name}" for name in unused)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    ("queue", "models"),
    [
        ("thumbnails", set()),
        ("webhooks", PYDANTIC),
        ("exports", PYDANTIC),
        ("emails", PYDANTIC | EMAIL_VALIDATOR),
    ],
)
def test_a_worker_starts_with_the_store_and_what_its_own_queue_uses(queue: str, models: set[str], store: str) -> None:
    assert started("worker", queue, store=store) == OURS | {"queues"} | POWERTOOLS | STORES[store] | models


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("module", ["sweeper", "api"])
def test_who_serves_every_queue_imports_what_their_modules_use(module: str, store: str) -> None:
    models = PYDANTIC | EMAIL_VALIDATOR
    assert started(module, store=store) == OURS | {"queues"} | POWERTOOLS | STORES[store] | models
