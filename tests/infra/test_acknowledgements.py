"""cdk-nag is a gate only if it closes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import infra
from support.stack_variant import KEY, QUEUES, Synthesize


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keep_data": False},
        {"reserved_concurrency": False},
        {"target": "local"},
        {"tracing": True},
        {"kms_key": KEY},
    ],
    ids=str,
)
def test_every_variant_passes(synthesize: Synthesize, options: dict[str, object]) -> None:
    # The fixture registers the checks, and a violation ends the synth.
    assert synthesize(**options).template.resources


def test_a_role_that_reaches_for_another_queue_ends_the_synth(tmp_path: Path) -> None:
    from aws_cdk import App, Validations
    from aws_cdk import aws_iam as iam
    from aws_cdk import aws_lambda as lambda_
    from cdk_nag import AwsSolutionsChecks

    from infra.acknowledgements import acknowledge
    from infra.options import Options
    from infra.queue_stack import QueueStack

    flags = json.loads((infra.ROOT / "cdk.json").read_text())["context"]
    app = App(context=flags, outdir=str(tmp_path / "cdk.out"))
    (tmp_path / "code").mkdir()
    stack = QueueStack(
        app,
        "s3queue",
        queues={name: QUEUES[name] for name in ("emails", "webhooks")},
        code=lambda_.Code.from_asset(str(tmp_path / "code")),
        options=Options(),
    )
    stack.queues["emails"].worker.role.add_to_policy(
        iam.PolicyStatement(
            actions=["s3:GetObject"], resources=[stack.storage.bucket.arn_for_objects("webhooks/messages/*")]
        )
    )
    acknowledge(stack)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    with pytest.raises(RuntimeError, match=r"Queue-emails/Queue/Worker/Role/.*\s.*webhooks/messages/\*"):
        app.synth()


def test_every_acknowledgement_gives_a_reason() -> None:
    from infra.acknowledgements import FINDINGS, LOCAL_FINDINGS, TRACING_FINDINGS

    for finding in (*FINDINGS, *TRACING_FINDINGS, *LOCAL_FINDINGS):
        assert len(finding.reason) > 40, finding
