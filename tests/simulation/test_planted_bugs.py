"""A proof that cannot fail proves nothing: every planted bug is caught, each by the promise that it breaks."""

from __future__ import annotations

import pytest

from .mutations import Mutation, hunt, planted


@pytest.mark.parametrize("mutation", planted(), ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_caught(mutation: Mutation) -> None:
    catch = hunt(mutation, seconds=60.0, remembers=True)
    assert catch.by, f"{mutation.name}: {catch.schedules} schedules and the crash matrix did not notice"
