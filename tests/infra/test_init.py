"""What `s3queue init` writes, tried literally with the built wheel: its tests, `cdk synth`, its container's command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import boto3
import pytest

from infra.local import toolchain
from infra.local.steps import Steps
from s3queue import connect
from s3queue.cli.project import CDK_CLI
from support.built_wheel import BuiltWheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("wheel")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> BuiltWheel:
    return BuiltWheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def project(wheel: BuiltWheel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    ran = wheel.run("-m", "s3queue.cli", "init", "shop", folder=folder)
    assert ran.returncode == 0, ran.stderr
    return folder / "shop"


def test_its_tests_pass(wheel, project):
    ran = wheel.run("-m", "pytest", "-q", "-p", "no:cacheprovider", folder=project)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout


def test_its_tests_fail_if_its_handler_does_not_work(wheel, tmp_path):
    wheel.run("-m", "s3queue.cli", "init", "--into", ".", folder=tmp_path)
    module = tmp_path / "queues" / "orders.py"
    module.write_text(module.read_text().replace('{"confirmed": order.id}', "{}"))

    ran = wheel.run("-m", "pytest", "-q", "-p", "no:cacheprovider", folder=tmp_path)

    assert "1 failed, 2 passed" in ran.stdout


def test_the_real_cdk_synthesizes_it_and_cdk_nag_finds_nothing(wheel, project):
    wheel.share_downloads(project)
    command = [str(part) for part in toolchain.cdk(Steps())]
    # `python` is the environment's, as in an activated one.
    path = os.pathsep.join([str(Path(sys.executable).parent), toolchain.path_with_node(os.environ["PATH"])])
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(wheel.site), "CI": "1"}
    environment |= {"CDK_DISABLE_CLI_TELEMETRY": "true"}
    ran = subprocess.run(
        [*command, "synth", "--quiet", "--no-notices"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=550,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    (nested,) = (project / "cdk.out").glob("shopQueueorders*.nested.template.json")
    functions = [one for one in json.loads(nested.read_text())["Resources"].values() if "Handler" in str(one)]
    assert "shop-orders" in str(functions)


def test_its_containers_command_runs_its_queue(wheel, project, moto_endpoint):
    s3 = boto3.client("s3", endpoint_url=moto_endpoint)
    s3.create_bucket(Bucket="shop-container")
    queue = connect("s3://shop-container/orders", endpoint_url=moto_endpoint)
    path = queue.enqueue({"id": 17, "email": "ada@example.com"})
    (command,) = re.findall(r"^CMD (\[.+\])$", (project / "Dockerfile").read_text(), re.MULTILINE)
    program, *arguments = json.loads(command)
    assert program == "s3queue"

    given = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    given |= {"S3QUEUE_URL": "s3://shop-container", "AWS_ENDPOINT_URL": moto_endpoint}
    ran = wheel.run("-m", "s3queue.cli", *arguments, "--until-empty", folder=project, **given)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    record = queue.status(path).record
    assert record
    assert (record.outcome, record.result) == ("completed", {"confirmed": 17})


def test_up_runs_it_on_this_machine_with_its_own_function(wheel, tmp_path):
    """As its README says; what `up` prints is what the next commands are given."""
    ran = wheel.run("-m", "s3queue.cli", "init", "shop", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    project = tmp_path / "shop"
    wheel.share_downloads(project)
    # Other tests have installed it already, here; a project of its own would do it now, from the registries.
    toolchain.ministack(Steps())
    toolchain.cdk(Steps())
    (project / ".local").mkdir()
    (project / ".local" / "tools").symlink_to(toolchain.TOOLS)
    log = tmp_path / "up.log"
    with log.open("wb") as output, wheel.start("-m", "s3queue.cli", "up", folder=project, output=output) as up:
        try:
            given = _exported(up, log)
            sent = wheel.run(
                "-m", "s3queue.cli", "send", "orders", '{"id": 17, "email": "a@b.c"}', folder=project, **given
            )
            assert sent.returncode == 0, sent.stderr
            path = sent.stdout.strip()
            deadline = time.monotonic() + 120
            while "completed" not in (said := _show(wheel, project, path, given)):
                assert time.monotonic() < deadline, said + log.read_text()
                time.sleep(1)
            assert json.loads(said)["result"] == {"confirmed": 17}
        finally:
            down = wheel.run("-m", "s3queue.cli", "down", folder=project)
            up.wait(60)
    assert "s3queue up" in down.stdout, down.stdout + down.stderr
    assert "Nothing is running" in wheel.run("-m", "s3queue.cli", "down", folder=project).stdout


def _exported(up: subprocess.Popen[bytes], log: Path) -> dict[str, str]:
    """The variables that it prints, once it is up."""
    deadline = time.monotonic() + 400
    while "dashboard" not in (said := log.read_text()):
        assert up.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.5)
    return dict(
        pair.split("=", 1) for line in re.findall(r"^export (.+)$", said, re.MULTILINE) for pair in line.split()
    )


def _show(wheel: BuiltWheel, project: Path, path: str, given: dict[str, str]) -> str:
    return wheel.run("-m", "s3queue.cli", "show", "orders", path, "--json", folder=project, **given).stdout


def test_up_says_what_is_missing(wheel, tmp_path):
    ran = wheel.run("-m", "s3queue.cli", "up", folder=tmp_path)

    assert ran.returncode == 2
    assert "no cdk.json in this folder" in ran.stderr


def test_the_readme_names_the_cdk_that_was_tried(project):
    lock = json.loads((toolchain.CDK_LOCK / "package.json").read_text())

    assert lock["dependencies"]["aws-cdk"] == CDK_CLI
    assert f"npx aws-cdk@{CDK_CLI} deploy" in (project / "README.md").read_text()
