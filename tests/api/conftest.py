"""The API over a bucket in memory, asked as Lambda asks it."""

from __future__ import annotations

import pytest

from s3queue.dashboard.api import build
from support.api_calls import Ask, asking
from support.workbench import Workbench


@pytest.fixture
def bench() -> Workbench:
    return Workbench()


@pytest.fixture
def ask(bench: Workbench) -> Ask:
    return asking(build(bench.store))
