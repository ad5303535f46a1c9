"""Synthesizes each variant of the stack once: starting jsii and synthesizing cost seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import infra
from infra.synthesized import read
from support.iam_template import Template
from support.stack_variant import QUEUES, Synthesize, Variant

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def synthesize(tmp_path_factory: pytest.TempPathFactory) -> Synthesize:
    # Here, not above: the CDK takes six seconds to import, and whoever collects these tests may not run them.
    from aws_cdk import App, Validations
    from aws_cdk import aws_lambda as lambda_
    from aws_cdk.assertions import Annotations, Match
    from cdk_nag import AwsSolutionsChecks

    from infra.acknowledgements import acknowledge
    from infra.options import Options
    from infra.queue_stack import QueueStack

    code = tmp_path_factory.mktemp("code")
    (code / "handlers.py").touch()
    flags = json.loads((infra.ROOT / "cdk.json").read_text())["context"]

    @cache
    def once(options: Options, extra: str) -> Variant:
        sends_to, environment, secrets, pulled, flows = json.loads(extra)
        app = App(context=flags, outdir=str(tmp_path_factory.mktemp("cdk.out")))
        stack = QueueStack(
            app,
            "s3queue",
            queues={
                name: replace(
                    queue,
                    sends_to=tuple(sends_to.get(name, ())),
                    flows=name in flows,
                    settings=replace(queue.settings, engine="pull") if name in pulled else queue.settings,
                )
                for name, queue in QUEUES.items()
            },
            code=lambda_.Code.from_asset(str(code)),
            options=options,
            environment=environment,
            secrets=secrets,
        )
        acknowledge(stack)
        Validations.of(app).add_plugins(AwsSolutionsChecks(app))
        said = Annotations.from_stack(stack)
        infos, warnings = (
            [str(message.entry.data) for message in find("*", Match.any_value())]
            for find in (said.find_info, said.find_warning)
        )
        found = read(Path(app.synth().directory) / stack.template_file)
        return Variant(Template(found.resources), infos, warnings, found)

    def variant(
        sends_to: Mapping[str, Sequence[str]] | None = None,
        environment: Mapping[str, Mapping[str, str]] | None = None,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        pulled: Sequence[str] = (),
        flows: Sequence[str] = (),
        **options: Any,
    ) -> Variant:
        # As text, which can be a key of the cache.
        return once(Options(**options), json.dumps([sends_to or {}, environment, secrets, list(pulled), list(flows)]))

    return variant


@pytest.fixture(scope="session")
def stack(synthesize: Synthesize) -> Variant:
    """As `cdk deploy` without options has it."""
    return synthesize()


# First, because pytest-xdist reads the marks in this same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One process for all of them: every other one would start a jsii of its own.
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("infra"))
