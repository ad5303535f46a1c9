"""The page of figures: made of the summary that is committed, and nothing else."""

from __future__ import annotations

import json

from bench import page
from bench.instruments import plot

#: What a reader of a diff can take in.
MOST_LINES, MOST_BYTES = 500, 60_000


def measured(median: float, unit: str) -> dict[str, object]:
    return {"unit": unit, "median": median, "low": median - 1, "high": median + 1, "values": [median] * 500}


def test_the_page_says_what_the_summary_says_and_nothing_else() -> None:
    found = json.loads(page.RESULTS.read_text())
    assert page.page(found, page.PAGE.read_text()) == page.PAGE.read_text()


def test_what_is_committed_is_small() -> None:
    text = page.RESULTS.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert len(text) <= MOST_BYTES
    assert (page.HERE / "growth.svg").stat().st_size <= MOST_BYTES


def test_a_summary_keeps_median_and_spread_of_each_row_and_no_raw_number() -> None:
    row = {"what": "enqueue", "ours": measured(10, "ms"), "against": "boto3", "theirs": measured(20, "ms")}
    row |= {"ratio": measured(2, "×"), "goal": 1.5, "is_met": True}
    part = {"name": "limit", "title": "Limit", "rows": [row], "skipped": [], "notes": ["n"], "raw": {"all": [1] * 500}}
    full = {"began_at": "2026-11-16T08:00:38+00:00", "machine": {"cores": 2}, "parts": {"limit": part}}

    found = page.summary(full)

    assert json.loads(page.as_json(found)) == found
    assert len(page.as_json(found).splitlines()) < 20
    assert found["parts"]["limit"]["rows"] == [
        {
            "what": "enqueue",
            "against": "boto3",
            "goal": 1.5,
            "is_met": True,
            "ours": [10, 9, 11],
            "theirs": [20, 19, 21],
            "ratio": [2, 1, 3],
            "unit": "ms",
        }
    ]


def test_a_run_of_some_parts_leaves_the_others_as_they_were() -> None:
    before = {"began_at": "2026-11-16", "repetitions": 5, "parts": {"limit": {"rows": [1]}, "model": {"rows": [2]}}}
    machine = {"commit": "abc", "load_average": [17.8, 1, 1]}
    run = {"began_at": "2026-11-17T10", "machine": machine, "repetitions": 3, "parts": {}}
    part = {"rows": [3], "notes": ["said"]}

    found = page.merged(run | {"parts": {"model": part}}, before)

    assert found["began_at"] == "2026-11-16"
    assert found["parts"]["limit"] == {"rows": [1]}
    assert found["parts"]["model"]["rows"] == [3]
    said = "measured 2026-11-17, commit `abc`, 3 repetitions, load average 18"
    assert found["parts"]["model"]["notes"] == ["said", said]
    whole = run | {"parts": {"limit": part, "model": part}}
    assert page.merged(whole, before) == whole


def test_a_plot_is_a_small_drawing_of_every_line(tmp_path) -> None:
    costs = {"stats": {100: 1.0, 1000: 10.0}, "a claim": {100: 2.0, 1000: 2.0}}
    plot.growth(costs, {"a <worker>": {1000: 1.5, 10000: 3.0}}, tmp_path / "build" / "growth.svg")

    drawn = (tmp_path / "build" / "growth.svg").read_text()

    # Two costs, the straight line to compare with, and the memory.
    assert drawn.count("<polyline") == 4
    assert all(name in drawn for name in ("stats", "a claim", plot.REFERENCE, "a &lt;worker&gt;"))
    assert len(drawn) < 4000
