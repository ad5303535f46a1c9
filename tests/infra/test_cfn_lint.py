"""Every kind of template, as CloudFormation's own schemas see it: what they refuse would fail late, in a deployment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.spark_stack import synthesized
from support.stack_variant import KEY, QUEUES, Synthesize

#: CDK names a dependency that a reference already implies.
IGNORED = ("W3005",)
FLIPPED = {
    "keep_data": False,
    "reserved_concurrency": False,
    "enforce_conditional_writes": False,
    "create_only_producers": True,
    "direct_store": False,
    "tracing": True,
    "metrics": "all",
    "kms_key": KEY,
}


def lint(template: Any, folder: Path) -> str:
    file = folder / "template.json"
    file.write_text(json.dumps(template))
    command = [Path(sys.executable).with_name("cfn-lint"), "--ignore-checks", *IGNORED, "--", file]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("options", [{}, FLIPPED], ids=["as it comes", "everything the other way round"])
def test_cloudformation_accepts_the_queues_stack(
    options: dict[str, bool], synthesize: Synthesize, tmp_path: Path
) -> None:
    synthesized = synthesize(**options).synthesized
    assert synthesized
    assert len(synthesized.templates) == 1 + len(QUEUES)
    for template in synthesized.templates.values():
        assert lint(template, tmp_path) == ""


def test_cloudformation_accepts_runs_and_schedules(tmp_path: Path) -> None:
    for template in synthesized(tmp_path, schedule_pipeline=True).synthesized.templates.values():
        assert lint(template, tmp_path) == ""


def test_cloudformation_accepts_the_spark_application(tmp_path: Path) -> None:
    from aws_cdk import App
    from aws_cdk.assertions import Template as Synthesized

    from infra.constructs.spark_runs import SparkStack

    assert lint(Synthesized.from_stack(SparkStack(App(), "spark")).to_json(), tmp_path) == ""


def test_what_cloudformation_refuses_is_found(tmp_path: Path) -> None:
    wrong = {"Resources": {"Function": {"Type": "AWS::Lambda::Function", "Properties": {"Timeout": 1000}}}}
    assert "E3" in lint(wrong, tmp_path)
