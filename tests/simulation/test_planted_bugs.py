"""A proof that cannot fail proves nothing: every planted bug is caught, each by the promise that it breaks."""

from __future__ import annotations

import pytest

from .mutations import MUTATIONS, Mutation, hunt


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_caught(mutation: Mutation) -> None:
    catch = hunt(mutation, seconds=60.0)
    assert catch.by, f"{mutation.name}: {catch.schedules} schedules and the crash matrix did not notice"
