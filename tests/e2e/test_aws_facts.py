"""MiniStack, held against what S3 answers: what is tried on it is tried on something like S3."""

from __future__ import annotations

import pytest

from aws_facts.runner import Fact, differences, facts
from support.deployed_stack import DeployedStack


@pytest.mark.parametrize("fact", [fact for fact in facts() if not fact.allowed], ids=lambda fact: fact.name)
def test_ministack_answers_as_s3_does(bench: DeployedStack, fact: Fact) -> None:
    found = differences(fact, bench.stack.client("s3"), bench.stack.bucket)
    if "ministack" in fact.differs:
        assert found, "MiniStack does as S3 does by now; take it out of s3.toml"
    else:
        assert not found, f"{fact.source}\n" + "\n".join(found)
