"""A bucket in memory, virtual time, counted requests: what most unit tests start from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from s3queue import Definition, Processor, Queue, QueueSettings, Sweeper
from s3queue.clock import RandomChance
from s3queue.store import Written
from s3queue.stores.memory import MemoryStore
from support.counting_store import CountingStore
from support.manual_clock import ManualClock

#: More requests than this for one message that cannot be worked on is a hot loop.
CALM = 25


class Workbench:
    """One bucket and one clock that everything made here shares."""

    def __init__(self, seed: int = 7) -> None:
        self.clock = ManualClock()
        #: Called around every request of the bucket if set: operation, key, and what carries it out.
        self.around: Callable[[str, str, Callable[[], Any]], Any] | None = None
        self.memory = MemoryStore("bench", clock=self.clock, around=self._request)
        self.store = CountingStore(self.memory)
        self.chance = RandomChance(random.Random(seed))

    def _request(self, operation: str, key: str, perform: Callable[[], Any]) -> Any:
        return self.around(operation, key, perform) if self.around else perform()

    def queue(self, name: str = "orders", *, worker_id: str = "", **settings: Any) -> Queue:
        """A queue without jitter, seen by a worker of its own."""
        return Queue(
            store=self.store,
            name=name,
            settings=QueueSettings.of(**({"retry_jitter": False} | settings)),
            worker_id=worker_id,
            clock=self.clock,
            chance=self.chance,
        )

    def processor(
        self, queue: Queue, handler: Callable[..., Any], *, sends_to: Sequence[str] = (), **options: Any
    ) -> Processor:
        definition = Definition(queue.name, queue.settings, sends_to)
        definition.handler(handler)
        definition.events.pass_on(queue.events)
        return Processor(queue=queue, definition=definition, **options)

    def sweeper(self, queue: Queue, dispatched: list[str] | None = None, *, counts_hour: bool = False) -> Sweeper:
        """One whose dispatches end up in `dispatched`."""
        paths: list[str] = [] if dispatched is None else dispatched

        def dispatch(sent: Sequence[str]) -> None:
            paths.extend(sent)

        return Sweeper(queue=queue, dispatch=dispatch, counts_hour=counts_hour)

    def keys(self, prefix: str = "") -> list[str]:
        """Every key in the bucket behind a prefix, without counting a request."""
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = self.memory.list(prefix, after=after)
            found += [entry.key for entry in page.objects]
            after = page.next_after
        return found

    def put(self, key: str, body: bytes, **options: Any) -> Written:
        """As a stranger does it: plain PutObject, without the library."""
        return self.memory.put(key, body, **options)

    def read(self, key: str) -> bytes:
        found = self.memory.open(key)
        assert found is not None, f"no object {key}; there are {self.keys()}"
        return found.read()

    def settle(self, queue: Queue, handler: Callable[..., Any], *, rounds: int = 20) -> None:
        """Sweep, run what was dispatched, and let time pass, until nothing is left to run."""
        dispatched: list[str] = []
        sweeper = self.sweeper(queue, dispatched)
        processor = self.processor(queue, handler)
        for _ in range(rounds):
            sweeper.sweep()
            while dispatched:
                processor.run(dispatched.pop(0), read_first=True)
            if not any(self.keys(queue.keys.prefix(kind)) for kind in ("messages", "delayed", "leases")):
                return
            self.clock.advance(queue.settings.rescue_after.total_seconds() + 1)
        raise AssertionError(f"never settled: {self.keys(queue.keys.root)}")


def next_tick(sweeper: Sweeper) -> float | None:
    """Tick; how many seconds until the next one is worthwhile. An error in the tick is raised."""
    report = sweeper.tick()
    if report and report.error:
        raise report.error
    return report.next_tick if report else None
