"""The last flows of a bucket are found on every server, in whichever order it lists folders."""

from __future__ import annotations

from typing import Any

import pytest

from s3queue.flow import flow_names
from s3queue.store import ObjectStore, Page

IDS = ["a", "a-", "a-0", "a0", "az-z", "b-17", "b-17-again", "b-170", "b-18", "z"]


class _SmallPages:
    """A bucket whose LISTs have few entries."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def list(self, prefix: str, *, limit: int = 1000, **options: Any) -> Page:
        return self._store.list(prefix, limit=min(limit, 3), **options)


def test_the_last_flows_are_found_from_the_end(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_names, "MOST_PAGES", 1)
    for flow_id in [*IDS, "b-17.0000", "b-17.0001", "b-17.0002"]:
        store.put(f"flows/{flow_id}/flow.json", b"{}")
    found = flow_names.flow_names(_SmallPages(store))  # type: ignore[arg-type]
    assert found == sorted(IDS, reverse=True)[: len(found)]
    assert len(found) >= 5
