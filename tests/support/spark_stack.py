"""The stack with Spark runs, synthesized: for the tests of the runs, of the pipeline, and of their roles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import infra
from infra.packaging.spark_code import PACKED
from infra.synthesized import SynthesizedStack, read
from s3queue.settings import QueueSettings
from support.iam_template import ACCOUNT, REGION, Role, Template
from support.stack_variant import Queue

APPLICATION = "00abc123"
ARN = f"arn:aws:emr-serverless:{REGION}:{ACCOUNT}:/applications/{APPLICATION}"
QUEUES = {
    "emails": Queue("emails", QueueSettings()),
    "exports": Queue("exports", QueueSettings.of(engine="spark", visibility_timeout=300)),
    "files": Queue("files", QueueSettings.of(heavy_above="64 MiB")),
}
CODE = ("drain.py", "pipeline.py", "code.zip", f"packages{PACKED}")


@dataclass(frozen=True)
class Stacked(Template):
    outputs: Mapping[str, Any]
    synthesized: SynthesizedStack

    def output(self, name: str) -> str:
        (found,) = [output["Value"] for id, output in self.outputs.items() if name in id]
        return str(self.resolve(found))


def synthesized(folder: Path, *, queues: dict[str, Queue] = QUEUES, nag: bool = True, **options: Any) -> Stacked:
    """As `cdk deploy` has it, cdk-nag included unless told otherwise: what it finds and nobody acknowledged fails."""
    # Here, not above: the CDK takes six seconds to import, and whoever collects these tests may not run them.
    from aws_cdk import App, Validations
    from aws_cdk import aws_lambda as lambda_
    from cdk_nag import AwsSolutionsChecks

    from infra.acknowledgements import acknowledge
    from infra.constructs.spark_runs import SparkCode
    from infra.options import Options
    from infra.queue_stack import QueueStack

    for name in ("handlers.py", *CODE):
        (folder / name).touch()
    flags = json.loads((infra.ROOT / "cdk.json").read_text())["context"]
    app = App(context=flags, outdir=str(folder / "cdk.out"))
    stack = QueueStack(
        app,
        "s3queue",
        queues=queues,
        code=lambda_.Code.from_asset(str(folder), exclude=["cdk.out"]),
        options=Options(**options),
        spark_application=APPLICATION,
        spark_code=SparkCode(*(str(folder / name) for name in CODE)),
    )
    if nag:
        acknowledge(stack)
        Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    found = read(Path(app.synth().directory) / stack.template_file)
    return Stacked(found.resources, found.outputs, found)


def role(template: Template, name: str) -> Role:
    """JobRole, HistoryRole, BulkRole or SchedulerRole."""
    (id,) = [id for id in template.of_type("AWS::IAM::Role") if name in id]
    return Role(template, list(template._statements_of(id.lower())), f"arn:aws:iam::{ACCOUNT}:role/{id.lower()}")
