"""estimate: what a month costs, here and with SQS, with every line of the sum shown."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import typer

from s3queue.settings import QueueSettings

from .command import command, program
from .output import facts, table
from .prices import MILLION, PRICES, dollars
from .session import Session
from .words import bytes_, size

PANEL = "Operate"
MONTH = timedelta(days=30)
_RATE = re.compile(r"(\d+(?:\.\d+)?)([kMG]?)(?:/(s|sec|second|m|min|minute|h|hour|d|day|month))?")
_SCALES = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: SQS bills a request for every 64 KiB of payload, and takes ten messages in one.
SQS_CHUNK = 64 * 1024
SQS_BATCH = 10
#: What one sweep of a busy queue asks, and how often: the root, leases and messages, then stats.json, every 30 s; and a
#: look at what is due every 2 s, which is one LIST while nothing waits.
SWEEP_REQUESTS, SWEEP_SECONDS = 4, 30
DUE_REQUESTS, DUE_SECONDS = 1, 2
LARGEST_BATCH = 10_000
ATTEMPTS = QueueSettings().max_attempts


def rate(text: str) -> float:
    """Messages a second, from `100/s`, `5000/h`, `2M/day`, `3M/month`; a bare number is a second's."""
    match = _RATE.fullmatch(text.replace(" ", ""))
    if not match:
        raise typer.BadParameter(f"{text!r} is no rate: 100/s, 5000/h, 2M/day or 3M/month is the form")
    unit = match[3] or "s"
    seconds = MONTH.total_seconds() if unit == "month" else _SECONDS[unit[0]]
    return float(match[1]) * _SCALES[match[2]] / seconds


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the sum: how many, what for, at which price per million."""

    what: str
    count: float
    price: float
    how: str = ""

    @property
    def cost(self) -> float:
        return self.count * self.price / MILLION

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "how": self.how,
            "count": round(self.count),
            "price_per_million": self.price,
            "cost": round(self.cost, 6),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent in a month."""

    messages: float
    batch: int = 1
    size: int = 1024
    #: The share of attempts that fail.
    retries: float = 0.0
    history: bool = True
    events: bool = False


def s3queue_lines(load: Load) -> list[Line]:
    """PROTOCOL.md's table of costs, times the objects of a month."""
    objects = load.messages / load.batch
    again = objects * expected_retries(load.retries, load.batch)
    lines = [
        Line("enqueue: PUT", objects, PRICES.s3_write, "1 an object"),
        Line("claim: PUT lease", objects, PRICES.s3_write, "1 an object"),
        Line("read: GET message", objects, PRICES.s3_read, "1 an object"),
    ]
    if load.history:
        lines.append(Line("complete: PUT record", objects, PRICES.s3_write, "1 an object"))
    lines.append(Line("clear: DELETE", 2 * objects, PRICES.s3_delete, "2 an object"))
    if again:
        lines.append(Line("retries: PUT", 3 * again, PRICES.s3_write, "3 a retried object"))
        lines.append(Line("retries: GET", 3 * again, PRICES.s3_read, "3 a retried object"))
    sweeps = MONTH.total_seconds() / SWEEP_SECONDS * SWEEP_REQUESTS
    due = MONTH.total_seconds() / DUE_SECONDS * DUE_REQUESTS
    lines += [
        Line("sweeper: LIST", sweeps + due, PRICES.s3_write, "while there is work; idle, 1 a minute"),
        Line("Lambda: invocations", objects + again, PRICES.lambda_invocation, "1 an object and retry"),
    ]
    if load.events:
        lines.append(Line("EventBridge: events", objects + again, PRICES.eventbridge_event, "events=all, 1 an outcome"))
    return lines


def sqs_lines(load: Load, *, batched: bool) -> list[Line]:
    """SQS with a Lambda that takes tens; sends one by one, or in tens too."""
    alone = max(1, math.ceil(load.size / SQS_CHUNK))
    together = max(1, math.ceil(load.size * SQS_BATCH / SQS_CHUNK))
    tens = load.messages / SQS_BATCH
    sends = tens * together if batched else load.messages * alone
    retries = expected_retries(load.retries)
    receives = tens * (1 + retries) * together
    sent = f"{together} for ten messages" if batched else f"{alone} a message"
    received = f"{together} for ten messages" + (", retries too" if retries else "")
    return [
        Line("send", sends, PRICES.sqs_request, f"{sent} (one per {bytes_(SQS_CHUNK)})"),
        Line("receive", receives, PRICES.sqs_request, f"{received} (one per {bytes_(SQS_CHUNK)})"),
        Line("delete", tens, PRICES.sqs_request, "1 for ten messages"),
        Line("Lambda: invocations", tens * (1 + retries), PRICES.lambda_invocation, "1 for ten messages"),
    ]


def expected_retries(share: float, lines: int = 1) -> float:
    """Retries of one object on average: it is tried again if any of its lines failed, and then only those run."""
    return sum(1 - (1 - share**attempt) ** lines for attempt in range(1, ATTEMPTS))


def total(lines: list[Line]) -> float:
    return sum(line.cost for line in lines)


def break_even(load: Load, *, batched: bool) -> int | None:
    """The smallest batch with which s3queue costs no more than SQS; None if there is none at this load."""
    target = total(sqs_lines(load, batched=batched))

    def costs(batch: int) -> float:
        described = {"messages": load.messages, "size": load.size, "retries": load.retries, "history": load.history}
        return total(s3queue_lines(Load(batch=batch, events=load.events, **described)))  # type: ignore[arg-type]

    return next((batch for batch in range(1, LARGEST_BATCH + 1) if costs(batch) <= target), None)


@command(
    program,
    "estimate --rate 100/s --batch 100",
    "estimate --rate 2M/day --size 300KiB --retries 0.05",
    "estimate --rate 5000/h --json | jq .s3queue.total",
    panel=PANEL,
)
def estimate(
    ctx: typer.Context,
    rate_: Annotated[
        Any, typer.Option("--rate", parser=rate, metavar="RATE", help="Messages: 100/s, 5000/h, 2M/day, 3M/month.")
    ],
    batch: Annotated[int, typer.Option("--batch", min=1, help="Messages in one .ndjson object.")] = 1,
    size_: Annotated[Any, typer.Option("--size", parser=size, metavar="SIZE", help="Of one message.")] = "1 KiB",
    retries: Annotated[
        float, typer.Option("--retries", min=0.0, max=1.0, help="Share of attempts that fail, e.g. 0.05.")
    ] = 0.0,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Whether completed ones get a record.")
    ] = True,
    events: Annotated[bool, typer.Option("--events", help="With every outcome on EventBridge.")] = False,
) -> None:
    """What a month costs, against SQS, with the arithmetic; and the batch size from which s3queue is cheaper.

    Left out: the handler's own GB-seconds, which are the same on both sides, storage for days, and data transfer.
    JSON: messages, batch, size, retries, s3queue, sqs, sqs_batched (lines, total, per_million), break_even (sqs,
    sqs_batched; null: never).
    """
    session = Session.of(ctx)
    messages = rate_ * MONTH.total_seconds()
    load = Load(messages=messages, batch=batch, size=size_, retries=retries, history=history, events=events)
    sums = {
        "s3queue": s3queue_lines(load),
        "sqs": sqs_lines(load, batched=False),
        "sqs_batched": sqs_lines(load, batched=True),
    }
    even = {"sqs": break_even(load, batched=False), "sqs_batched": break_even(load, batched=True)}
    per_million = {name: total(lines) / messages * MILLION if messages else 0.0 for name, lines in sums.items()}
    document: dict[str, Any] = {"messages": round(messages), "batch": batch, "size": size_, "retries": retries}
    for name, lines in sums.items():
        document[name] = {
            "lines": [line.to_json() for line in lines],
            "total": round(total(lines), 6),
            "per_million": round(per_million[name], 6),
        }
    titles = {
        "s3queue": f"s3queue, {batch} to an object",
        "sqs": "SQS, sends one by one",
        "sqs_batched": "SQS, sends in tens",
    }
    shown: list[Any] = [f"{round(messages):,} messages of {bytes_(size_)} in 30 days", ""]
    for name, lines in sums.items():
        rows = [
            [line.what, line.how, f"{line.count:,.0f}", f"at ${line.price:.2f}/M", dollars(line.cost)] for line in lines
        ]
        rows.append(["total", "", "", f"{dollars(per_million[name])}/M", dollars(total(lines))])
        shown.append(table(["~" + titles[name], "~how many", ">requests", ">price", ">a month"], rows))
    shown.append(facts([(f"cheaper than {titles[name]}", _even(even[name])) for name in even]))
    session.answer(document | {"break_even": even}, *shown)


def _even(batch: int | None) -> str:
    if batch is None:
        return "never at this rate: the sweeper alone costs more; SQS is the better choice"
    return "with any batch size" if batch == 1 else f"from {batch} messages to an object on"
