"""The application that is shipped, as `cdk deploy` would build it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import infra
import queues
from support.iam_template import Template


@dataclass(frozen=True)
class Synthesized:
    template: Template
    #: What lies in the zip of the worker functions.
    content: Path


def synth(root: Path, out: Path, **environment: str) -> Synthesized:
    """Run the app as the CDK CLI does, in a process of its own, for this machine."""
    flags = json.loads((infra.ROOT / "cdk.json").read_text())["context"]
    given = {**flags, "target": "local"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-m", "infra.app"],
        cwd=root,
        env={**inherited, "CDK_OUTDIR": str(out), "CDK_CONTEXT_JSON": json.dumps(given), **environment},
        check=True,
    )
    template = Template.read(out / "s3queue.template.json")
    code = template.resources[_id_of(template, "s3queue-emails")]["Properties"]["Code"]["S3Key"]
    return Synthesized(template, out / f"asset.{code.removesuffix('.zip')}")


def _id_of(template: Template, function: str) -> str:
    (id,) = (id for id, f in template.of_type("AWS::Lambda::Function").items() if f.get("FunctionName") == function)
    return id


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Synthesized:
    return synth(infra.ROOT, tmp_path_factory.mktemp("out"), EMAIL_OUTBOX="outbox")


def ours(app: Synthesized) -> dict[str, dict[str, Any]]:
    return {f["FunctionName"]: f for f in app.template.of_type("AWS::Lambda::Function").values() if "FunctionName" in f}


def test_every_queue_module_is_deployed_with_its_function_filter_and_concurrency(app: Synthesized) -> None:
    modules = {path.stem for path in (infra.FUNCTIONS / "queues").glob("*.py") if not path.stem.startswith("_")}
    defined = queues.load()
    assert len(defined) == len(modules) >= 4
    watched = {
        rule["LambdaFunctionArn"].rpartition(":")[2]: rule["Filter"]["Key"]["FilterRules"][0]["Value"]
        for notification in app.template.of_type("Custom::S3BucketNotifications").values()
        for rule in notification["NotificationConfiguration"]["LambdaFunctionConfigurations"]
    }
    # The one of `make aws-smoke` is not among them.
    assert "s3queue-smoke" not in ours(app)
    for name, queue in defined.items():
        assert ours(app)[f"s3queue-{name}"]["ReservedConcurrentExecutions"] == queue.settings.concurrency
        assert watched[f"s3queue-{name}"] == f"{name}/messages/"


def test_every_handler_named_in_the_template_is_in_the_zip_and_runs_on_it_alone(app: Synthesized) -> None:
    handlers = {function["Handler"] for function in ours(app).values()}
    assert handlers == {"handlers.worker.handle", "handlers.sweeper.handle", "handlers.api.handle", "handlers.api.read"}
    # -I -S: neither this environment's packages nor the current directory. Importing must not ask AWS anything.
    program = f"import sys; sys.path.insert(0, {str(app.content)!r})\nfrom importlib import import_module\n"
    program += "".join(
        f"assert callable(import_module({module!r}).{name}), {name!r}\n"
        for module, _, name in (handler.rpartition(".") for handler in handlers)
    )
    program += "import queues; assert queues.load()\n"
    subprocess.run([sys.executable, "-I", "-S", "-B", "-c", program], check=True, env={})


def test_a_worker_gets_the_variables_that_its_own_handler_reads_and_no_others(app: Synthesized) -> None:
    environment = {name: f["Environment"]["Variables"] for name, f in ours(app).items()}
    assert environment["s3queue-emails"]["EMAIL_OUTBOX"] == "outbox"
    assert [name for name, variables in environment.items() if "EMAIL_OUTBOX" in variables] == ["s3queue-emails"]


def test_the_functions_emit_the_dimensions_that_the_alarms_look_for(
    app: Synthesized,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    from aws_lambda_powertools import Logger

    from handlers.telemetry import Telemetry
    from s3queue.connect import connect
    from support.function_loggers import forget_loggers

    request.addfinalizer(forget_loggers)

    # As deployed: Powertools adds dimensions by what it finds here.
    for name, value in ours(app)["s3queue-emails"]["Environment"]["Variables"].items():
        monkeypatch.setenv(name, value)
    queue = connect("memory://dimensions/emails")
    telemetry = Telemetry(queue, Logger())
    queue.events.emit("message.dead", queue="emails", path="messages/x", attempt=0, error="")
    telemetry.flush()
    emitted = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"_aws"' in line]
    (directive,) = emitted[0]["_aws"]["CloudWatchMetrics"]
    alarms = [a for a in app.template.of_type("AWS::CloudWatch::Alarm").values() if a["Namespace"] == "s3queue"]
    assert alarms
    for alarm in alarms:
        assert directive["Namespace"] == alarm["Namespace"]
        assert directive["Dimensions"] == [[dimension["Name"] for dimension in alarm["Dimensions"]]]


@pytest.mark.slow
def test_adding_a_queue_is_adding_one_module(tmp_path: Path) -> None:
    from infra.constructs.functions import Platform
    from infra.packaging.lambda_zip import prepare

    root = tmp_path / "copy"
    ignore = shutil.ignore_patterns("__pycache__", "local", ".*")
    for folder in ("functions", "infra", "spark"):
        shutil.copytree(infra.ROOT / folder, root / folder, ignore=ignore)
    shutil.copy(infra.ROOT / "requirements-lambda.txt", root)
    # The dependencies are the same, so they need not be installed again.
    (root / "build").symlink_to(infra.ROOT / "build")
    (root / "functions" / "queues" / "invoices.py").write_text(
        "from s3queue import define\n\n"
        'queue = define("invoices", concurrency=7)\n\n\n'
        "@queue.handler\n"
        "def write(invoice: dict) -> None:\n"
        "    pass\n"
    )
    added = synth(root, tmp_path / "out")
    worker = ours(added)["s3queue-invoices"]
    assert worker["ReservedConcurrentExecutions"] == 7
    assert (added.content / "queues" / "invoices.py").exists()
    role, bucket = added.template.role_of("s3queue-invoices"), worker["Environment"]["Variables"]["S3QUEUE_BUCKET"]
    assert role.may("s3:GetObject", f"arn:aws:s3:::{bucket}/invoices/messages/x")
    assert not role.may("s3:GetObject", f"arn:aws:s3:::{bucket}/emails/messages/x")
    assert "invoices" in ours(added)["s3queue_sweeper"]["Environment"]["Variables"]["S3QUEUE_WORKERS"]
    shutil.rmtree(prepare(Platform.of("local"), functions=root / "functions"))
