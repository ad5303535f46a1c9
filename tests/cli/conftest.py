"""The command in this process, over a bucket in memory that no other test knows."""

from __future__ import annotations

import uuid

import pytest

from support.cli_calls import Cli


@pytest.fixture
def cli() -> Cli:
    return Cli(f"memory://cli-{uuid.uuid4().hex}")
