"""The constructs in other people's CDK apps: what `from s3queue_cdk import S3Queues` makes, from the built wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.built_wheel import BuiltWheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("wheel")]

QUEUE = """
from s3queue import Context, define
{imports}
queue = define("orders", concurrency=2)
ENVIRONMENT = ["SHOP_URL"]
SECRETS = ["SHOP_TOKEN"]

@queue.handler
def confirm(order: dict, context: Context) -> dict:
    return {{"confirmed": order["id"]}}
"""
APP = """
from s3queue_cdk import Options, S3Queues
from aws_cdk import App, Stack, Validations
from aws_cdk import aws_ssm as ssm
from cdk_nag import AwsSolutionsChecks
import s3queue, s3queue_cdk

assert "site" in s3queue.__file__ and "site" in s3queue_cdk.__file__, s3queue.__file__
app = App()
S3Queues(app, "shop", package="queues")
S3Queues(app, "existing", bucket="their-own-bucket")
own = Stack(app, "own")
ssm.StringParameter(own, "Theirs", string_value="something")
S3Queues(own, "Queues", package="shop.jobs", include=["prices"], options=Options(reserved_concurrency=False))
Validations.of(app).add_plugins(AwsSolutionsChecks(app))
app.synth()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> BuiltWheel:
    return BuiltWheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def synthesized(wheel: BuiltWheel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `cdk.out` of an app in an empty folder; what cdk-nag finds ends the program with an error."""
    folder = tmp_path_factory.mktemp("shop")
    write(folder / "queues", {"__init__.py": "", "orders.py": QUEUE.format(imports="")})
    write(folder / "shop" / "jobs", {"__init__.py": "", "orders.py": QUEUE.format(imports="import prices")})
    write(folder / "shop", {"__init__.py": ""})
    write(folder, {"app.py": APP, "prices.py": "VAT = 19\n"})
    wheel.share_downloads(folder)
    ran = wheel.run(
        "app.py", folder=folder, timeout=550, CDK_OUTDIR=str(folder / "cdk.out"), SHOP_URL="https://shop.example"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder / "cdk.out"


def write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def resources(out: Path, pattern: str, kind: str) -> list[dict[str, Any]]:
    """The properties of all resources of one type, of a stack and its nested ones."""
    found = []
    for file in sorted(out.glob(pattern)):
        template = json.loads(file.read_text())
        found += [one.get("Properties", {}) for one in template["Resources"].values() if one["Type"] == kind]
    assert found, f"{pattern} has no {kind}"
    return found


def functions(out: Path, pattern: str) -> dict[str, dict[str, Any]]:
    ours = [one for one in resources(out, pattern, "AWS::Lambda::Function") if "FunctionName" in one]
    return {one["FunctionName"]: one for one in ours}


def test_the_wheel_has_the_constructs_typed_and_nothing_of_this_repositorys_application(wheel):
    tops = {name.partition("/")[0] for name in wheel.names}

    assert tops == {"s3queue", "s3queue_cdk", "s3queue-0.1.0.dist-info"}
    assert {"s3queue_cdk/py.typed", "s3queue/py.typed", "s3queue_cdk/requirements-lambda.txt"} <= set(wheel.names)
    assert {"s3queue_cdk/local/cdk-cli/npm-shrinkwrap.json", "s3queue_cdk/requirements-ministack.txt"} <= set(
        wheel.names
    )
    assert not [name for name in wheel.names if "/demo/" in name or "/smoke/" in name or "emails" in name]


def test_one_statement_deploys_every_module_of_the_package(synthesized):
    found = functions(synthesized, "shop*.template.json")

    assert set(found) == {"shop-orders", "shop_sweeper", "shop_api", "shop_api_reader"}
    variables = found["shop-orders"]["Environment"]["Variables"]
    assert variables["SHOP_URL"] == "https://shop.example"
    assert json.loads(variables["S3QUEUE_SECRETS"]) == {"SHOP_TOKEN": "ssm:/shop/orders/SHOP_TOKEN"}
    assert found["shop-orders"]["ReservedConcurrentExecutions"] == 2


def test_the_zip_has_the_applications_code_beside_the_handlers(synthesized):
    zips = [one for one in synthesized.glob("asset.*") if (one / "handlers" / "worker.py").exists()]
    assert len(zips) == 2
    (plain,) = (one for one in zips if (one / "queues").exists())
    (dotted,) = (one for one in zips if (one / "shop").exists())

    assert (dotted / "prices.py").exists()
    assert (plain / "boto3").is_dir()
    program = "from s3queue.worker.application import Application; print(Application().load_one('orders').settings)"
    for code, package in ((plain, ""), (dotted, "shop.jobs")):
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(code), "S3QUEUE_PACKAGE": package}
        command = [sys.executable, "-c", program]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=code)
        assert "concurrency=2" in ran.stdout, ran.stderr


def test_a_package_of_another_name_is_named_to_every_function(synthesized):
    found = functions(synthesized, "own*ueues*.template.json")

    assert len(found) == 4
    assert {one["Environment"]["Variables"]["S3QUEUE_PACKAGE"] for one in found.values()} == {"shop.jobs"}
    assert not any("ReservedConcurrentExecutions" in one for one in found.values())


def test_an_existing_bucket_gets_notifications_and_keeps_its_policy(synthesized):
    buckets = resources(synthesized, "existing.template.json", "AWS::S3::Bucket")
    assert len(buckets) == 1, "the bucket of failed invocations alone"
    notified = resources(synthesized, "existing.template.json", "Custom::S3BucketNotifications")
    (theirs,) = (one for one in notified if one["BucketName"] == "their-own-bucket")
    assert theirs["Managed"] is False
    prefixes = json.dumps(theirs["NotificationConfiguration"])
    assert "orders/messages/" in prefixes
    assert "orders/delayed/" in prefixes
    policies = resources(synthesized, "existing.template.json", "AWS::IAM::Policy")
    (allowed,) = (
        statement["Action"]
        for policy in policies
        for statement in policy["PolicyDocument"]["Statement"]
        if "s3:PutBucketNotification" in statement["Action"]
    )
    assert allowed == ["s3:PutBucketNotification", "s3:GetBucketNotification"]


def test_what_belongs_into_the_policy_of_an_existing_bucket_is_an_output(synthesized):
    template = json.loads((synthesized / "existing.template.json").read_text())
    said = json.dumps(template["Outputs"]["BucketPolicy"]["Value"])

    assert "DenyUnconditionalWritesOfState" in said
    assert "DenyArchivedMessages" in said
    for policy in resources(synthesized, "existing.template.json", "AWS::S3::BucketPolicy"):
        assert policy["Bucket"] != "their-own-bucket"


def test_the_role_of_a_worker_reaches_its_own_queue_of_the_existing_bucket(synthesized):
    said = json.dumps(resources(synthesized, "existingQueue*.nested.template.json", "AWS::IAM::Policy"))

    assert ":s3:::their-own-bucket/orders/leases/*" in said
    assert ":s3:::their-own-bucket/*" not in said


@pytest.mark.parametrize(
    ("files", "statement", "complaint"),
    [
        ({}, 'package="nothing_here"', "no package 'nothing_here' beside the program"),
        ({"q/__init__.py": "", "q/x.py": "y = 1"}, 'package="q"', "q.x defines no queue; add `queue = define(...)`"),
        (
            {"q/__init__.py": "", "q/x.py": "from s3queue import define\nqueue = define('x', engine='spark')"},
            'package="q"',
            "x: queues that run on Spark",
        ),
    ],
)
def test_what_cannot_be_deployed_is_told(wheel, tmp_path, files, statement, complaint):
    for name, text in files.items():
        write((tmp_path / name).parent, {Path(name).name: text})
    program = f"from s3queue_cdk import S3Queues; from aws_cdk import App; S3Queues(App(), 'shop', {statement})"
    ran = wheel.run("-c", program, folder=tmp_path)

    assert ran.returncode != 0
    assert complaint in ran.stderr
