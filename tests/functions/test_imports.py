"""What each function imports: a cold start pays for every package, so a new one must be meant."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import infra
import queues
from s3queue.deployment import Deployment

PATHS = ":".join([str(infra.FUNCTIONS), *{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}])
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
    return ran(f"import sys, {module}; print(*sys.modules)", **environment)


def ran(code: str, **environment: str) -> set[str]:
    """What code prints, in a fresh process, without what is no part of the functions' zip: the extra `fast`."""
    code = f"import sys; sys.modules['msgspec'] = None; {code}"
    # Without `site`: what a developer's environment imports at its start is not the handler's.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": PATHS} | LAMBDA | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split()) - {"msgspec"}


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


#: Of this repository, what a worker of a queue without further settings has loaded after its first message. Partitions,
#: flows, schedules, limits and dead letters add no module to it, and so no start time: what is new here must be meant.
SIMPLE = {
    "handlers": {"telemetry", "tracing", "worker"},
    "s3queue": {
        *("clock", "connect", "deployment", "encoding", "errors", "events", "keys", "limits", "paths", "queue"),
        *("retry", "run_memory", "settings", "store", "tracing"),
    },
    "s3queue.documents": {
        *("batch", "dead_facts", "heartbeat", "lease", "message", "once", "record", "sends"),
    },
    "s3queue.flow": {"async_queue", "operated_queue"},
    "s3queue.protocol": {
        *("access", "backlog", "batch_lines", "claim", "claiming", "expire", "gate", "kinds", "lease_ages"),
        *(
            "lease_protocol",
            "lease_writes",
            "liveness",
            "misnamed",
            "opening",
            "outcomes",
            "overrides",
            "payload_check",
            "producer",
        ),
        "stretch",
    },
    "s3queue.spark_runs": {"runs"},
    "s3queue.stores": {
        *("aws_environment", "connection", "connections", "direct", "many", "place", "s3_errors", "signature", "wire"),
    },
    "s3queue.worker": {
        *("application", "context", "definition", "hooks", "invocation", "loop", "notifications", "own_retries"),
        *("parsing", "processor", "signatures", "spans", "unknown", "unserved"),
    },
}


def test_a_worker_of_a_simple_queue_imports_these_modules_of_ours(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "simple.py").write_text(
        "from s3queue import define\nqueue = define('simple')\n@queue.handler\ndef handle(body): ...\n"
    )
    # What is loaded late is loaded by the first message, and its sender waits for it just as well.
    code = (
        "import handlers.worker, sys\n"
        "from datetime import UTC, datetime\n"
        "from s3queue import connect\n"
        "from s3queue.worker.application import Application\n"
        "from s3queue.worker.invocation import InvocationRunner\n"
        "from s3queue.worker.notifications import Notification\n"
        "queue = connect('memory://bucket/simple')\n"
        "path = queue.enqueue({'n': 1})\n"
        "runner = InvocationRunner(queue, Application().load_one('simple'))\n"
        "notification = Notification(path=path, notified_at=datetime.now(UTC))\n"
        "assert runner.run([notification], lambda: 60.0) == {'completed': 1}\n"
        "print(*sys.modules)"
    )
    deployment = Deployment(bucket="bucket", queue="simple", workers={"simple": "s3queue-simple"})
    found = ran(
        code,
        S3QUEUE_STORE="direct",
        S3QUEUE_PACKAGE="shop",
        AWS_LAMBDA_INITIALIZATION_TYPE="on-demand",
        PYTHONPATH=f"{tmp_path}:{PATHS}",
        **deployment.to_env(),
    )
    ours = {name for name in found if name.partition(".")[0] in OURS} - {"s3queue.stores.memory"}
    assert ours == {f"{room}.{name}" for room, names in SIMPLE.items() for name in names} | SIMPLE.keys()
