"""Every figure of the documents is the model's, or the measurement's: prices, tables, and where SQS is cheaper."""

from __future__ import annotations

import re

import pytest

from s3queue import QueueSettings
from s3queue.costs import requests as operations
from s3queue.costs.bill import bill_of, break_even, sqs_bill_of
from s3queue.costs.delays import price_of_delay, requests_of_delay
from s3queue.costs.estimate import Prefix, estimate
from s3queue.costs.prices import PRICES
from s3queue.costs.requests import BILLED_AS_READS, BILLED_AS_WRITES, RequestCounts
from s3queue.costs.workload import Workload, light_object
from support.documents import DOCUMENTS, read

COSTS = "docs/costs.md"
MINUTES_A_MONTH = 30 * 24 * 60


def rows(document: str) -> dict[str, list[str]]:
    """Every row of the tables of a document: its first cell → the others."""
    found = {}
    for line in read(document).splitlines():
        if line.startswith("| ") and not line.startswith("|---"):
            first, *others = (cell.strip() for cell in line.strip("|").split("|"))
            found[first] = others
    return found


def dollars(spent: RequestCounts) -> float:
    """Of a million."""
    return spent.total(BILLED_AS_WRITES) * PRICES.s3_write + spent.total(BILLED_AS_READS) * PRICES.s3_read


def test_a_delay_costs_what_the_model_says() -> None:
    found = rows(COSTS)

    for seconds in (5, 60):
        asked = requests_of_delay(seconds).by_verb()
        row = found[f"a delay of {seconds} s, alone in an idle queue"]
        assert f"{asked['GET']:.0f} GET + {asked['LIST']:.0f} LIST more" in row[0]
        assert row[-1] == f"${price_of_delay(seconds):.2f}"
    assert found["a delay of more than a minute"][-1] == f"${price_of_delay(61):.2f}"


def test_an_event_of_a_burst_costs_what_the_model_says() -> None:
    more = dollars(light_object(Workload(rate=1, throttled=1.0))) - dollars(light_object(Workload(rate=1)))
    burst = "an event of a burst, which finds all functions busy: one of these takes its message"
    assert rows(COSTS)[burst][-1] == f"${more:.2f}"
    assert f"${more:.2f}\n(`s3queue estimate --throttled 1`)" in read(COSTS)


def a_message(**settings: object) -> float:
    return dollars(light_object(Workload(rate=1, settings=QueueSettings.of(**settings))))


# By load


def row_of(rate: int, batch: int) -> str:
    found = estimate(Workload(rate=rate, batch=batch))
    asked = {one.kind: one for one in found.prefixes}
    ours, theirs = bill_of(found), sqs_bill_of(found, batched=batch > 1)
    cells = [
        *(f"{rate:,}", f"{batch:,}", *(asked_of(asked[kind]) for kind in ("messages", "leases", "records"))),
        *(figure(found.shards), figure(found.worker.concurrency)),
        *(f"${ours.per_million:.2f}", f"${theirs.per_million:.2f}"),
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
def test_the_costs_page_shows_what_the_model_says(rate, batch):
    assert row_of(rate, batch) in read(COSTS)


def test_the_costs_page_tells_where_it_turns():
    text = " ".join(read(COSTS).split())
    bare = QueueSettings.of(history=False)
    turns = {
        "from {} messages per object on at 10/s": break_even(Workload(rate=10), batched=False),
        "{} at 1,000/s": break_even(Workload(rate=1000), batched=False),
        "({} without history)": break_even(Workload(rate=1000, settings=bare), batched=False),
        "from {} on at 1,000/s": break_even(Workload(rate=1000), batched=True),
    }

    assert [told for told, batch in turns.items() if told.format(batch) not in text] == []
    assert break_even(Workload(rate=100), batched=True) is None
    assert break_even(Workload(rate=1), batched=False) is None


def test_the_costs_page_tells_what_watching_costs():
    def watched(rate=1, **options):
        lines = bill_of(estimate(Workload(rate=rate, **options))).lines
        return {line.what: f"${line.cost:.2f}" for line in lines if line.what.startswith(("CloudWatch", "X-Ray"))}

    found = rows(COSTS)
    shown = {first.partition(",")[0]: cells[-1] for first, cells in found.items()}
    assert shown["`-c metrics=alarms`"] == f"{watched()['CloudWatch: metrics']} a queue"
    busy = watched(1000, metrics="all")
    assert shown["`-c metrics=all`"].startswith(f"{busy['CloudWatch: metrics']} a queue")
    lines = busy["CloudWatch: metrics' log lines"]
    assert shown["`-c metrics=all`"].endswith(f"{lines} at 1,000/s")
    assert shown["alarms"] == f"{watched()['CloudWatch: alarms']} for one queue"
    traced = [watched(rate, tracing=True)["X-Ray: traces"] for rate in (1, 1000)]
    assert shown["`-c tracing=true`"] == "{} at 1/s, {} at 1,000/s".format(*traced)


# By message


@pytest.mark.parametrize("document", ["README.md", COSTS])
def test_the_price_of_a_message_is_that_of_its_requests(document):
    found = {first.split(" (`.ndjson`)")[0]: cells for first, cells in rows(document).items()}

    assert found["single messages"][-1] == f"${a_message():.2f}"
    assert found["without history (`history=False`)"][-1] == f"${a_message(history=False):.2f}"
    batches = [f"${a_message() / size:.{digits}f}" for size, digits in ((10, 2), (100, 2), (1000, 3))]
    assert found["batches of 10 / 100 / 1,000"][-1] == " / ".join(batches)
    assert found["an idle queue"][-1] == f"${MINUTES_A_MONTH * PRICES.s3_write / 1_000_000:.2f} a month"


def test_the_price_of_sqs_is_that_of_its_requests():
    single, in_tens = (1 + 2 / 10) * PRICES.sqs_request, 3 / 10 * PRICES.sqs_request

    assert (
        rows(COSTS)["SQS with Lambda, received in tens"][-1]
        == f"${single:.2f} (${in_tens:.2f} if sends are batched too)"
    )
    assert rows("README.md")["for comparison: SQS with Lambda, received in tens"] == ["1.2", f"${single:.2f}"]


def test_the_readme_repeats_the_costs_page():
    page = rows(COSTS) | {"batches of 10 / 100 / 1,000": rows(COSTS)["batches of 10 / 100 / 1,000 (`.ndjson`)"]}
    shown = ("single messages", "without history (`history=False`)", "batches of 10 / 100 / 1,000", "an idle queue")

    assert {first: rows("README.md")[first] for first in shown} == {first: page[first] for first in shown}


def test_the_protocol_counts_as_the_model_does():
    happy = light_object(Workload(rate=1)).by_verb()

    assert {verb: happy[verb] for verb in ("PUT", "GET", "DELETE")} == {"PUT": 3, "GET": 1, "DELETE": 2}
    assert operations.ENQUEUE.total() == 1
    protocol = rows("functions/s3queue/PROTOCOL.md")
    assert protocol["enqueue"][0] == "1"
    assert protocol["claim, run, complete"] == ["2", "1", "2"]


# How fast, and how it is written


def test_the_readme_repeats_the_performance_page():
    shown = read("README.md").partition("## How fast it is")[2].partition("\n## ")[0]
    lines = [line for line in shown.splitlines() if line.startswith("| ") and "against" not in line]

    assert len(lines) == 5
    assert [line for line in lines if line not in read("docs/performance.md")] == []


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if document != "tests/bench/README.md"])
def test_prices_are_written_with_the_dollar_in_front(document):
    assert re.findall(r"\d \$", read(document)) == []
