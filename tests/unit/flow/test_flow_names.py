"""The last flows are found, however many there are."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from s3queue.flow import flow_names
from support.workbench import Workbench

START = 1_750_000_000.0


def _ids(bench: Workbench, count: int) -> list[str]:
    """As the library makes them: they begin with the time."""
    return [bench.chance.name(datetime.fromtimestamp(START + 1700 * number, UTC)) for number in range(count)]


@pytest.mark.parametrize("kind", ["made", "chosen", "alike"])
def test_of_too_many_flows_the_last_ones_are_listed(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(flow_names, "MOST_PAGES", 2)
    numbers = random.Random(3).sample(range(10_000), 4000)
    ids = {
        "made": lambda: _ids(bench, 4000),
        "chosen": lambda: [f"order-{number}" for number in numbers],
        "alike": lambda: ["a" * 63, "a" * 62, *(f"{'a' * 40}-{number}" for number in numbers)],
    }[kind]()
    for flow_id in ids:
        bench.put(f"flows/{flow_id}/flow.json", b"")
    # What someone else wrote there is no flow.
    for junk in ("flows/Zebra/x", "flows/~/x", "flows/plain", "flows/é/x"):
        bench.put(junk, b"")
    bench.store.take()
    found = flow_names.flow_names(bench.store)
    assert found == sorted(found, reverse=True)
    assert found == sorted(ids, reverse=True)[: len(found)]
    assert len(found) == flow_names.MOST_LAST
    assert bench.store.take()["list"] <= 2 + flow_names.MOST_LISTS


def test_flows_within_others_hide_none(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_names, "MOST_PAGES", 2)
    for outer in ("f1", "f2", "f3"):
        bench.put(f"flows/{outer}/flow.json", b"")
        for number in range(1000):
            bench.put(f"flows/{outer}.{number:04d}/flow.json", b"")
    assert flow_names.flow_names(bench.store) == ["f3", "f2", "f1"]
