"""README shows what the model says."""

from __future__ import annotations

from pathlib import Path

import pytest

from s3queue import QueueSettings
from s3queue.costs.bill import bill_of, break_even, sqs_bill_of
from s3queue.costs.estimate import Prefix, estimate
from s3queue.costs.workload import Workload

REPOSITORY = Path(__file__).parents[3]


def readme_row(rate: int, batch: int) -> str:
    found = estimate(Workload(rate=rate, batch=batch))
    asked = {one.kind: one for one in found.prefixes}
    ours, theirs = bill_of(found), sqs_bill_of(found, batched=batch > 1)
    cells = [
        *(f"{rate:,}", f"{batch:,}", *(asked_of(asked[kind]) for kind in ("messages", "leases", "records"))),
        *(figure(found.shards), figure(found.worker.concurrency)),
        *(f"{ours.per_million:.2f} $", f"{theirs.per_million:.2f} $"),
        "**s3queue**" if ours.total <= theirs.total else "SQS",
    ]
    return f"| {' | '.join(cells)} |"


def asked_of(prefix: Prefix) -> str:
    """Writes + reads; a few looks of the sweeper are not worth a figure."""
    told = figure(prefix.writes)
    return f"{told} + {figure(prefix.reads)}" if prefix.reads > 0.15 * prefix.writes else told


def figure(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


@pytest.mark.parametrize("batch", [1, 10, 100, 1000])
@pytest.mark.parametrize("rate", [1, 1000, 100_000])
def test_the_readme_shows_what_the_model_says(rate, batch):
    assert readme_row(rate, batch) in (REPOSITORY / "README.md").read_text()


def test_the_readme_tells_where_it_turns():
    text = " ".join((REPOSITORY / "README.md").read_text().split())
    bare = QueueSettings.of(history=False)
    turns = {
        "from {} messages to an object on at 1/s": break_even(Workload(rate=1), batched=False),
        "{} at 1,000/s": break_even(Workload(rate=1000), batched=False),
        "({} without history)": break_even(Workload(rate=1000, settings=bare), batched=False),
        "from {} on at 1,000/s": break_even(Workload(rate=1000), batched=True),
    }
    assert [told for told, batch in turns.items() if told.format(batch) not in text] == []
    assert break_even(Workload(rate=100), batched=True) is None
