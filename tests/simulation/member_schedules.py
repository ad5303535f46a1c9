"""Flows over two queues: those who start and cancel them, workers and sweepers of both, and faults at every request.

In some schedules handlers start flows, too, also those of groups: members of flows may start others.

Each queue has a judge of its own, which holds its messages against all promises; both share the one who watches
flows.  [P8]
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from s3queue.errors import AccessDenied, QueueError, Unavailable
from s3queue.flow.flows import Flow
from s3queue.settings import QueueSettings

from .actors import sweeping
from .cast import Cast
from .checks import check_quiet, leftovers, tally
from .faults import DrawnFaults
from .flow_actors import FLOW
from .functions import Fleet
from .hindrances import HINDERED_OF, RETENTION, UNREAD, UNTOLD, Unread, Untold, looked_at_soon
from .judge import Judge
from .machines import Process
from .producers import Producers
from .violations import Violation
from .world import QUEUE, World

NAMES = (QUEUE, "r")
FLOWS, CANCELLERS = 3, 2
#: What a message of a flow does, attempt by attempt: most end well, so that most flows come to their steps.
PLANS = ("k", "k", "k", "k", "k", "fk", "fk", "r")
LASTS, REPAIR_SECONDS = 25.0, 300.0
#: Seeds of this remainder have handlers that start flows.
STARTING, STARTERS = 22, 3


class MemberSchedule:
    """One seed's world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults = DrawnFaults(FLOW, world.random)
        world.faults = self.faults
        self.settings = QueueSettings(
            visibility_timeout=timedelta(seconds=4),
            max_attempts=world.random.choice((1, 2, 3)),
            retry_base=timedelta(seconds=1),
            retry_cap=timedelta(seconds=2),
            rescue_after=timedelta(seconds=4),
        )
        self._is_untold = world.seed % HINDERED_OF == UNTOLD
        if self._is_untold:
            self.settings = replace(self.settings, record_retention=timedelta(seconds=RETENTION))
        self._unread = Unread(world) if world.seed % HINDERED_OF == UNREAD else None
        self.judges = {name: Judge(world, self.settings.max_attempts, name) for name in NAMES}
        first = self.judges[QUEUE]
        for name, judge in self.judges.items():
            judge.members = first.members
            first.members.ledgers[name] = judge.ledger
        self.casts = {
            name: Cast(world, judge, self.settings, FLOW, name=name, sends_to=NAMES)
            for name, judge in self.judges.items()
        }
        self._is_starting = world.seed % 40 == STARTING
        self.fleets = {name: Fleet(cast, 2, drains=False) for name, cast in self.casts.items()}
        self.producers = Producers(self.casts[QUEUE], LASTS)
        self._started: list[str] = []
        self._is_quiet = False

    # The watcher: each judge sees its queue, and the first one what lies under `flows/`

    def performed(self, process: Process, operation: str, key: str, sent_at: float, before: Any, after: Any) -> None:
        name, _, rest = key.partition("/")
        self.judges.get(name, self.judges[QUEUE]).performed(process, operation, key, sent_at, before, after)
        if after and name in self.fleets and rest.startswith("messages/"):
            self.fleets[name].event(rest, after.etag)

    def stepped(self) -> None:
        for judge in self.judges.values():
            judge.stepped()

    def hold(self, process: Process, claim: Any) -> None:
        self.judges[claim.message.queue].hold(process, claim)

    def let_go(self, process: Process) -> None:
        for judge in self.judges.values():
            judge.let_go(process)

    def broken(self, promise: str, what: str) -> None:
        self.judges[QUEUE].broken(promise, what)

    def violations(self) -> list[Violation]:
        return [violation for judge in self.judges.values() for violation in judge.violations]

    def counts(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for judge in self.judges.values():
            counts += tally(judge)
        return counts

    # The plot

    def run(self) -> None:
        with looked_at_soon(is_wanted=self._unread is not None):
            self._run()

    def _run(self) -> None:
        if self._is_untold:
            Untold(self.world, self.judges).begin()
        for number in range(FLOWS):
            process = self.casts[QUEUE].process("producer")
            self.producers.keep(process, lambda process=process, number=number: self._start(process, number))  # type: ignore[misc]
        # What cannot be described cannot be cancelled either, before it can.
        for _ in range(0 if self._unread and self._unread.kind is AccessDenied else CANCELLERS):
            process = self.casts[QUEUE].process("operator")
            self.producers.keep(process, lambda process=process: self._cancel(process))  # type: ignore[misc]
        for number in range(STARTERS if self._is_starting else 0):
            cast = self.casts[self.world.random.choice(NAMES)]
            process = cast.process("producer")
            self.producers.keep(
                process,
                lambda cast=cast, process=process, number=number: self._enqueue(cast, process, number),  # type: ignore[misc]
            )
        for name, cast in self.casts.items():
            sweeping(cast, self.fleets[name].dispatch, self.world.random.uniform(1.5, 4.0))
        self.world.run(LASTS)
        self.faults.is_over = True
        for cast in self.casts.values():
            cast.is_over = True
        self._watch_for_quiet()
        self.world.run(LASTS + REPAIR_SECONDS, done=lambda: self._is_quiet)
        for name, judge in self.judges.items():
            if not self.violations():
                check_quiet(self.world, judge, self.casts[name])

    def _watch_for_quiet(self) -> None:
        busy = any(fleet.busy for fleet in self.fleets.values())
        self._is_quiet = bool(self.violations()) or not (
            leftovers(self.world) or busy or self.world.in_flight or self.producers.at_work
        )
        if not self._is_quiet:
            self.world.at(self.world.now + 1.0, self._watch_for_quiet)

    def _start(self, process: Process, number: int) -> None:
        queue, chance = self.casts[QUEUE].queue(process), self.world.random
        self.world.sleep(chance.random() * 8.0)
        flow = Flow(queue, id=f"f{number}", on_dead=chance.choice(("fail", "continue")))
        for member in range(chance.choice((1, 2, 3, 6))):
            if chance.random() < 0.2:
                inner = Flow(queue, on_dead=chance.choice(("fail", "continue")))
                for node in range(chance.choice((1, 2))):
                    inner.add(*self._message(f"{number}-{member}-{node}"))
                inner.then(*self._message(f"{number}-{member}-s"))
                flow.add(inner)
            else:
                flow.add(*self._message(f"{number}-{member}"))
        for step in range(chance.choice((0, 1, 1, 2))):
            flow.then(*self._message(f"{number}-s{step}"))
        if self._unread:
            self._unread.hide(flow.document())
        self._started.append(flow.id)
        for _ in range(chance.choice((1, 1, 3))):
            try:
                flow.start()
            except Unavailable:
                continue
            except QueueError as error:
                self.broken("unexpected", f"flow {flow.id} was not started: {error}")
            self.world.sleep(chance.random() * 3.0)

    def _message(self, name: str) -> tuple[str, bytes]:
        chance = self.world.random
        takes = round(chance.random() * (6.0 if chance.random() < 0.2 else 0.6), 2)
        body: dict[str, Any] = {"id": name, "takes": takes, "plan": chance.choice(PLANS)}
        if self._is_starting and chance.random() < 0.2:
            body["starts"] = self._flow(f"{name}+")
        return chance.choice(NAMES), json.dumps(body).encode()

    def _enqueue(self, cast: Cast, process: Process, number: int) -> None:
        """Messages, also in a group, whose handlers start flows; some are PUT anew."""
        queue, chance = cast.queue(process), self.world.random
        for turn in range(chance.choice((1, 2))):
            self.world.sleep(chance.random() * 6.0)
            script = {"id": f"{number}-{turn}", "takes": round(chance.random(), 2), "plan": chance.choice(PLANS)}
            body = json.dumps(script | {"starts": self._flow(f"{number}-{turn}")}).encode()
            options: dict[str, Any] = {"name": f"{number}-{turn}"} | ({"group": "a"} if chance.random() < 0.4 else {})
            for _ in range(chance.choice((1, 1, 2))):
                with suppress(QueueError):
                    queue.enqueue(body, **options)
                self.world.sleep(chance.random() * 8.0)

    def _flow(self, name: str) -> dict[str, Any]:
        """What a script says of a flow."""
        chance = self.world.random

        def message(number: str) -> list[Any]:
            takes, plan = round(chance.random() * 0.6, 2), chance.choice(PLANS)
            return [chance.choice(NAMES), {"id": f"{name}{number}", "takes": takes, "plan": plan}]

        members: list[Any] = [message(f"m{number}") for number in range(chance.choice((1, 2, 3)))]
        if chance.random() < 0.2:
            members.append({"members": [message("i0")], "steps": [message("i1")]})
        steps = [message(f"s{number}") for number in range(chance.choice((0, 1, 1, 2)))]
        return {"members": members, "steps": steps, "on_dead": chance.choice(("fail", "continue"))}

    def _cancel(self, process: Process) -> None:
        queue, chance = self.casts[QUEUE].queue(process), self.world.random
        self.world.sleep(5.0 + chance.random() * 15.0)
        found = [flow.flow_id for flow in self.judges[QUEUE].members.flows()] if self._is_starting else self._started
        if found:
            for _ in range(2):
                try:
                    Flow(queue, id=chance.choice(found)).cancel()
                except QueueError:
                    continue
                break
