"""The deployed path under load: PutObject → S3's event → function → outcome, on the local stack.

The deployed queue `emails`, in turns with a bare function that notes its start and does nothing else: what the bare one
cannot do is the emulator's limit, not ours. With so many messages in flight at all times, and with a burst behind a
reserved concurrency, where most events come late and functions drain the queue.

MiniStack, its functions and this process share the machine, so the times are no AWS times. A message has its outcome
when a LIST every 20 ms shows it no more; the bare function's bucket is listed as often.
"""

from __future__ import annotations

import io
import json
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from rich.console import Console

from infra.local.application import for_this_machine
from infra.local.home import Home
from infra.local.stack import LocalStack, local_stack
from infra.local.steps import Steps

from .instruments.harness import Bench
from .latency import Bare

CONCURRENCIES = (1, 5, 20)
#: In one turn.
MESSAGES = {1: 20, 5: 40, 20: 60}
BURST = 40
LOOK_SECONDS = 0.02
#: What has no outcome by then counts as if it had it now: throttled events come again after minutes.
PATIENCE_SECONDS = 120.0
BODY = json.dumps({"to": "ada@example.com", "subject": "Hello"}).encode()
AGAINST = "a bare function"


class Side(Protocol):
    """What is put under load."""

    @property
    def function(self) -> str: ...
    def put(self, name: str) -> None: ...
    def ended(self, names: set[str]) -> set[str]:
        """Which of these have their outcome; one LIST."""
        ...


@dataclass(frozen=True, slots=True)
class Emails:
    """The deployed queue."""

    stack: LocalStack

    @property
    def function(self) -> str:
        return self.stack.workers["emails"]

    def put(self, name: str) -> None:
        self.stack.client("s3").put_object(Bucket=self.stack.bucket, Key=f"emails/messages/{name}", Body=BODY)

    def ended(self, names: set[str]) -> set[str]:
        found = self.stack.client("s3").list_objects_v2(Bucket=self.stack.bucket, Prefix="emails/messages/")
        return names - {entry["Key"].rpartition("/")[2] for entry in found.get("Contents", ())}


@dataclass(frozen=True, slots=True)
class BareFunction:
    """A function that notes the name of its object; the emulator does the rest."""

    bare: Bare
    function: str = "bare"

    def put(self, name: str) -> None:
        self.bare.client.put_object(Bucket=self.bare.bucket, Key=name, Body=BODY)

    def ended(self, names: set[str]) -> set[str]:
        self.bare.client.list_objects_v2(Bucket=self.bare.bucket, Prefix="none/")
        return {name for name in names if (self.bare.notes / name).exists()}


@dataclass(slots=True)
class Load:
    """Messages in flight, and how long each took from PutObject sent to its outcome."""

    side: Side
    took: list[float] = field(default_factory=list)
    _waiting: dict[str, tuple[float, threading.Event]] = field(default_factory=dict)
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def run(self, in_flight: int, messages: int) -> float:
        """So many messages at a time; returns the seconds until all have their outcome."""
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        began = time.perf_counter()
        try:
            with ThreadPoolExecutor(in_flight) as producers:
                list(producers.map(self._send, range(messages)))
            return time.perf_counter() - began
        finally:
            self._is_over.set()
            watcher.join()

    def _send(self, _number: int) -> None:
        name, ended, sent_at = f"{uuid.uuid4().hex}.json", threading.Event(), time.perf_counter()
        self.side.put(name)
        with self._mutex:
            self._waiting[name] = sent_at, ended
        if not ended.wait(PATIENCE_SECONDS):
            with self._mutex:
                self._waiting.pop(name, None)
            self.took.append(PATIENCE_SECONDS)

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            with self._mutex:
                names = set(self._waiting)
            for name in self.side.ended(names) if names else ():
                with self._mutex:
                    sent_at, ended = self._waiting.pop(name, (0.0, None))
                if ended:
                    self.took.append(time.perf_counter() - sent_at)
                    ended.set()


def run(bench: Bench) -> None:
    with bench.part("deployed", "The deployed path under load: PutObject → event → function → outcome") as part:
        with TemporaryDirectory(prefix="bench-stack-") as folder:
            # A home of its own: the stack of `make up` is left alone.
            home = Home(Path(folder))
            steps = Steps(Console(file=io.StringIO()))
            with (
                bench.console.status("deploying the local stack"),
                # A stack that keeps its data keeps throttled events, too, as Lambda does; others drop them.
                local_stack(home, variables=for_this_machine(home), steps=steps, keep=True) as stack,
            ):
                sides = Emails(stack), BareFunction(Bare.deploy(stack, home.path / "notes"))
                limit = _limiting(stack)
                for concurrency in CONCURRENCIES:
                    part.raw[f"{concurrency} in flight"] = _steady(bench, sides, concurrency, limit)
                for concurrency in reversed(CONCURRENCIES):
                    part.raw[f"burst behind {concurrency}"] = _burst(bench, sides, concurrency, limit)
        bench.note(
            "emulator, functions and clients share two cores: what the bare function cannot do either is not ours; "
            "MiniStack tries a throttled event again after 1, 2, 4 … seconds, as Lambda does"
        )


def _limiting(stack: LocalStack) -> Callable[[str, int | None], None]:
    functions = stack.client("lambda")

    def limit(function: str, concurrency: int | None) -> None:
        """None: as many as the account has."""
        if concurrency is None:
            functions.delete_function_concurrency(FunctionName=function)
        else:
            functions.put_function_concurrency(FunctionName=function, ReservedConcurrentExecutions=concurrency)

    return limit


Limit = Callable[[str, int | None], None]
Raw = list[dict[str, dict[str, float | list[float]]]]


def _steady(bench: Bench, sides: Sequence[Side], concurrency: int, limit: Limit) -> Raw:
    """So many in flight at all times, and functions for all of them: a function ends a little after its message."""
    for side in sides:
        limit(side.function, None)
    for side in sides:
        # What starts cold is not measured; twice as many, for those that begin before another one has quite ended.
        Load(side).run(2 * concurrency, 3 * concurrency)
    what, turns = f"{concurrency} in flight", bench.repetitions
    return _measure(bench, sides, what, concurrency, MESSAGES[concurrency], turns=turns)


def _burst(bench: Bench, sides: Sequence[Side], concurrency: int, limit: Limit) -> Raw:
    for side in sides:
        limit(side.function, concurrency)
    # Once: the events that were throttled last would meet the next burst.
    what = f"a burst of {BURST} behind a concurrency of {concurrency}"
    return _measure(bench, sides, what, BURST, BURST, turns=1)


def _measure(bench: Bench, sides: Sequence[Side], what: str, in_flight: int, messages: int, *, turns: int) -> Raw:
    found: Raw = []
    for turn in range(turns):
        bench.console.print(f"  {what}: {turn + 1} of {turns}", style="dim")
        loads = [Load(side) for side in sides]
        seconds = [load.run(in_flight, messages) for load in loads]
        found.append(
            {
                name: {"per_second": messages / took, "ms": [1000 * one for one in load.took]}
                for name, load, took in zip(("ours", "bare"), loads, seconds, strict=True)
            }
        )
    bench.pair(
        f"{what}: messages/s",
        [(one["ours"]["per_second"], one["bare"]["per_second"]) for one in found],
        AGAINST,
        unit="/s",
    )
    for name, percentile in (("p50", 50), ("p99", 99)):
        pairs = [tuple(_percentile(one[who]["ms"], percentile) for who in ("ours", "bare")) for one in found]
        bench.pair(f"{what}: to the outcome, {name}", pairs, AGAINST, unit="ms", better="less")
    return found


def _percentile(values: Sequence[float], percentile: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percentile - 1]
