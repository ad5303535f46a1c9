"""estimate: what a load needs and costs, with s3queue and with SQS, line by line."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

import typer

from s3queue.cli.command import command, program
from s3queue.cli.output import facts, table
from s3queue.cli.prices import dollars
from s3queue.cli.session import Session
from s3queue.cli.words import age, bytes_, counted, duration, size
from s3queue.costs.bill import Bill, bill_of, break_even, sqs_bill_of
from s3queue.costs.estimate import EMR_VCPU, LAMBDA_CONCURRENCY, MOST_SHARDS, WORKER_VCPU, Estimate, Runs
from s3queue.costs.estimate import estimate as estimated
from s3queue.costs.lines import Line
from s3queue.costs.prices import MILLION
from s3queue.costs.workload import MONTH, REQUEST_SECONDS, Workload
from s3queue.documents.flow import MOST_MEMBERS
from s3queue.errors import InvalidRequest
from s3queue.settings import QueueSettings

PANEL = "Operate"
_RATE = re.compile(r"(\d+(?:\.\d+)?)([kMG]?)(?:/(s|sec|second|m|min|minute|h|hour|d|day|month))?")
_SCALES = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHARE = re.compile(r"(\d+(?:\.\d+)?)(%?)")
_DEFAULTS = QueueSettings()
#: Rates for which the break-even is shown, besides the one that was asked for.
RATES = (1, 10, 100, 1_000, 10_000, 100_000)


def rate(text: str | float) -> float:
    """Messages per second, from `100/s`, `5000/h`, `2M/day`, `3M/month`; a bare number is per second."""
    match = _RATE.fullmatch(str(text).replace(" ", ""))
    if not match:
        raise typer.BadParameter(f"{text!r} is not a rate; write 100/s, 5000/h, 2M/day or 3M/month")
    unit = match[3] or "s"
    seconds = MONTH.total_seconds() if unit == "month" else _SECONDS[unit[0]]
    return float(match[1]) * _SCALES[match[2]] / seconds


def share(text: str | float) -> float:
    """`0.02` or `2%`."""
    match = _SHARE.fullmatch(str(text).replace(" ", ""))
    found = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= found <= 1:
        raise typer.BadParameter(f"{text!r} is not a share; write 0.02 or 2%, from 0 to 1 or 100%")
    return found


def _share(name: str, help: str) -> Any:
    return typer.Option(name, parser=share, metavar="SHARE", help=help)


def _time(name: str, help: str) -> Any:
    return typer.Option(name, parser=duration, metavar="DURATION", help=help)


@command(
    program,
    "estimate --rate 100/s --batch 100",
    "estimate --rate 2M/day --size 300KiB --retries 5% --handler 200ms --memory 1024",
    "estimate --rate 5/s --heavy 1% --heavy-time 2m --max-runs 2",
    "estimate --rate 5/s --delayed 20% --delay 5s --sends 10% --flows 10% --members 50",
    "estimate --rate 5000/h --json | jq .s3queue.total",
    panel=PANEL,
)
def estimate(
    ctx: typer.Context,
    rate_: Annotated[
        Any, typer.Option("--rate", parser=rate, metavar="RATE", help="Messages: 100/s, 5000/h, 2M/day, 3M/month.")
    ] = "10/s",
    batch: Annotated[int, typer.Option("--batch", min=1, help="Messages per .ndjson object.")] = 1,
    size_: Annotated[Any, typer.Option("--size", parser=size, metavar="SIZE", help="Size of one message.")] = "1 KiB",
    handler: Annotated[Any, _time("--handler", "How long the handler takes for one message.")] = "50ms",
    memory: Annotated[int, typer.Option("--memory", min=128, max=10_240, help="Memory of the function, in MiB.")] = (
        _DEFAULTS.memory_mib
    ),
    retries: Annotated[Any, _share("--retries", "Share of attempts that fail and are retried.")] = "0",
    dead: Annotated[Any, _share("--dead", "Share of messages that are rejected at once.")] = "0",
    late: Annotated[Any, _share("--late", "Share of events that come late.")] = "0",
    rescued: Annotated[Any, _share("--rescued", "Share of events that never come.")] = "0",
    throttled: Annotated[Any, _share("--throttled", "Share of events that find all functions busy.")] = "0",
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Whether completed messages get a record.")
    ] = True,
    partitions: Annotated[
        int, typer.Option("--partitions", help="Single messages are spread over so many partitions per queue.", min=0)
    ] = 0,
    keep_payload: Annotated[
        bool, typer.Option("--keep-payload", help="Keep the payloads of completed messages.")
    ] = False,
    events: Annotated[
        str, typer.Option("--events", metavar="WHICH", help="Events on EventBridge: off, failures or all.")
    ] = "off",
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="WHICH", help="Metrics of each queue: all, alarms or off.")
    ] = "alarms",
    limit: Annotated[
        str | None,
        typer.Option("--limit", metavar="RATE", help="The queue's own rate, such as 100/min: each call takes a token."),
    ] = None,
    kms: Annotated[bool, typer.Option("--kms", help="A KMS key of your own.")] = False,
    tracing: Annotated[bool, typer.Option("--tracing", help="Traces on X-Ray.")] = False,
    queues: Annotated[int, typer.Option("--queues", min=1, help="Number of queues.")] = 1,
    heavy: Annotated[Any, _share("--heavy", "Share of messages that go to Spark.")] = "0",
    heavy_time: Annotated[Any, _time("--heavy-time", "How long one of them takes in a run.")] = "60s",
    max_runs: Annotated[int, typer.Option("--max-runs", min=1, help="Spark runs at one time, per queue.")] = (
        _DEFAULTS.max_runs
    ),
    latency: Annotated[Any, _time("--latency", "Of one request from a function to S3.")] = (
        f"{REQUEST_SECONDS * 1000:.0f}ms"
    ),
    dedup: Annotated[Any, _share("--dedup", "Share of single messages that are sent with dedup_for.")] = "0",
    cancelled: Annotated[
        Any, _share("--cancelled", "Share of messages, or batches, that are cancelled while they wait.")
    ] = "0",
    schedules: Annotated[
        int, typer.Option("--schedules", min=0, help="Number of schedules: each sweep lists those of its queue.")
    ] = 0,
    delayed: Annotated[Any, _share("--delayed", "Share of single messages that are sent with a delay.")] = "0",
    delay: Annotated[Any, _time("--delay", "How long that is; the sweeper stays awake for less than a minute.")] = "5s",
    sends: Annotated[Any, _share("--sends", "Share of single messages that another one has sent.")] = "0",
    flows: Annotated[Any, _share("--flows", "Share of single messages that belong to a flow.")] = "0",
    members: Annotated[
        int, typer.Option("--members", min=1, max=MOST_MEMBERS, help="Members of each flow; one step comes after them.")
    ] = 10,
) -> None:
    """What a load needs and costs: requests, shards, concurrency, Spark runs, dollars; compared with SQS, line by line.

    List prices of us-east-1. Not included on either side: log lines, data transfer, cold starts, free tiers.
    JSON: messages, batch, size, requests_per_message, prefixes, shards, queues_needed, lambda, runs, s3queue, sqs,
    sqs_batched (lines, total, per_million), break_even (sqs, sqs_batched; null: never), break_even_by_rate.
    """
    session = Session.of(ctx)
    settings = QueueSettings.of(
        memory_mib=memory,
        history=history,
        partitions=partitions,
        keep_payload=keep_payload,
        events=events,
        max_runs=max_runs,
        rate=limit,
    )
    if dedup and batch > 1:
        raise InvalidRequest("--dedup is for single messages: a batch has no dedup id; leave --batch out")
    for option, asked in (("--delayed", delayed), ("--sends", sends), ("--flows", flows)):
        if asked and batch > 1:
            raise InvalidRequest(f"{option} is for single messages: leave --batch out")
    load = Workload(
        rate=rate_,
        size=size_,
        batch=batch,
        retries=retries,
        dead=dead,
        late=late,
        rescued=rescued,
        throttled=throttled,
        handler_seconds=handler.total_seconds(),
        heavy=heavy,
        heavy_seconds=heavy_time.total_seconds(),
        queues=queues,
        metrics=metrics,  # type: ignore[arg-type]  # checked there
        tracing=tracing,
        kms=kms,
        request_seconds=latency.total_seconds(),
        settings=settings,
        dedup=dedup,
        cancelled=cancelled,
        schedules=schedules,
        delayed=delayed,
        delay_seconds=delay.total_seconds(),
        sends=sends,
        flows=flows,
        members=members,
    )
    found = estimated(load)
    bills = {
        "s3queue": bill_of(found),
        "sqs": sqs_bill_of(found, batched=False),
        "sqs_batched": sqs_bill_of(found, batched=True),
    }
    even = _break_even(load)
    by_rate = {one: _break_even(replace(load, rate=one)) for one in RATES}
    document = _document(found) | {name: _billed(bill) for name, bill in bills.items()}
    document |= {"break_even": even, "break_even_by_rate": {str(one): turns for one, turns in by_rate.items()}}
    titles = {
        "s3queue": f"s3queue, {counted(batch, 'message')} per object",
        "sqs": "SQS, single sends",
        "sqs_batched": "SQS, sends in batches of ten",
    }
    shown: list[Any] = [
        f"{counted(round(load.messages), 'message')} of {bytes_(size_)} in 30 days, handled in {age(handler)} each",
        *(_table(titles[name], bill) for name, bill in bills.items()),
        table(
            ["prefix of a queue", ">writes/s", ">reads/s", ">shards"],
            [[f"{one.kind}/", f"{one.writes:,.3g}", f"{one.reads:,.3g}", one.shards] for one in found.prefixes],
        ),
        facts(_facts(found)),
        "",
        table(
            ["cheaper than SQS, messages per object", *(f">{one:,}/s" for one in RATES)],
            [
                [what, *(_even(turns[name]) for turns in by_rate.values())]
                for name, what in (("sqs", "with single sends"), ("sqs_batched", "with sends in batches of ten"))
            ],
        ),
        facts([(f"at this rate, cheaper than {titles[name]}", _turn(even[name])) for name in even]),
    ]
    session.answer(document, *shown)


def _break_even(load: Workload) -> dict[str, int | None]:
    return {"sqs": break_even(load, batched=False), "sqs_batched": break_even(load, batched=True)}


# What scripts read


def _document(found: Estimate) -> dict[str, Any]:
    load, worker = found.workload, found.worker
    return {
        "messages": round(load.messages),
        "batch": load.batch,
        "size": load.size,
        "requests_per_message": {verb: _short(count) for verb, count in found.per_message.by_verb().items()},
        "prefixes": [
            {"kind": one.kind, "writes": _short(one.writes), "reads": _short(one.reads), "shards": one.shards}
            for one in found.prefixes
        ],
        "shards": found.shards,
        "queues_needed": found.queues_needed,
        "lambda": {
            "invocations": _short(worker.invocations),
            "seconds": _short(worker.seconds),
            "concurrency": _short(worker.concurrency),
            "default_limit": LAMBDA_CONCURRENCY,
        },
        "runs": found.runs and _ran(found.runs),
    }


def _ran(runs: Runs) -> dict[str, Any]:
    return {
        "started": _short(runs.started * MONTH.total_seconds()),
        "seconds": _short(runs.seconds),
        "messages": _short(runs.messages),
        "needed": runs.needed,
        "max_runs": runs.max_runs,
        "vcpu": _vcpu(runs),
    }


def _billed(bill: Bill) -> dict[str, Any]:
    return {
        "lines": [_line(line) for line in bill.lines],
        "total": round(bill.total, 6),
        "per_million": round(bill.per_million, 6),
    }


def _line(line: Line) -> dict[str, Any]:
    described = {"what": line.what, "how": line.how, "count": round(line.count, 6), "unit": line.unit}
    return described | {"price": line.price, "per": line.per, "cost": round(line.cost, 6)}


def _short(number: float) -> float:
    return float(f"{number:.6g}")


# What people read


def _table(title: str, bill: Bill) -> Any:
    rows = [[line.what, line.how, _count(line), _price(line), dollars(line.cost)] for line in bill.lines]
    rows.append(["total", "", "", f"{dollars(bill.per_million)}/M messages", dollars(bill.total)])
    return table(["~" + title, "~how many", ">per month", ">price", ">cost"], rows)


def _count(line: Line) -> str:
    return f"{line.count:,.0f}" if line.count >= 10 else f"{line.count:.2g}"


def _price(line: Line) -> str:
    return f"${line.price:.2f}/M {line.unit}" if line.per == MILLION else f"${line.price:.2g}/{line.unit[:-1]}"


def _facts(found: Estimate) -> list[tuple[str, str]]:
    worker = found.worker
    verbs = (f"{count:.2g} {verb}" for verb, count in found.per_message.by_verb().items())
    told = [
        ("requests per message", ", ".join(verbs)),
        ("shards", _sharding(found)),
        ("Lambda concurrency", _concurrency(found)),
        ("invocations", f"{worker.invocations:,.3g} per second, {age(worker.seconds)} each"),
        ("sweeper", f"runs {found.sweeper.seconds:.0f} s of every minute"),
    ]
    return told + ([("Spark runs", _running(found.runs))] if found.runs else [])


def _sharding(found: Estimate) -> str:
    if found.queues_needed > found.workload.queues:
        return f"{found.shards:,} per queue, but a queue has at most {MOST_SHARDS}: use {found.queues_needed} queues"
    return "none needed" if found.shards == 1 else f"define(…, shards={found.shards})"


def _concurrency(found: Estimate) -> str:
    needed = found.worker.concurrency
    told = f"{needed:,.3g} on average"
    if needed > LAMBDA_CONCURRENCY:
        return f"{told}, but an account has {LAMBDA_CONCURRENCY:,}: raise the quota, or use less time"
    return f"{told}; an account has {LAMBDA_CONCURRENCY:,}"


def _running(runs: Runs) -> str:
    month = runs.started * MONTH.total_seconds()
    told = f"{month:,.0f} per month of {age(timedelta(seconds=runs.seconds))}, {runs.messages:,.3g} messages each"
    if not runs.keep_up:
        return f"do not keep up: needs {counted(runs.needed, 'run')} at one time, max_runs is {runs.max_runs}"
    if _vcpu(runs) > EMR_VCPU:
        return f"{told}; {_vcpu(runs)} vCPU at one time, but an account has {EMR_VCPU}: raise the quota"
    return told


def _vcpu(runs: Runs) -> int:
    return runs.needed * runs.workers * WORKER_VCPU


def _even(batch: int | None) -> str:
    if batch is None:
        return "never"
    return "always" if batch == 1 else f"from {batch:,}"


def _turn(batch: int | None) -> str:
    if batch is None:
        return "never: SQS is the better choice"
    return "with any batch size" if batch == 1 else f"from {batch:,} messages per object"
