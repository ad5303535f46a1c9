"""Faults: what can go wrong with a request, an event or a process, drawn from the seed or scripted one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .machines import Process
from .world import Fault

#: Requests that S3 may answer with 409, or with 412 to the SDK's own retry: the conditional ones.
_CONDITIONAL = frozenset({"leases", "records", "workers", "schedules"})
#: What no promise depends on.
_PUBLISHED = ("queue.json", "stats.json")

#: Producers and operators.
_CALLERS = ("producer", "operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What goes wrong in one schedule, and how often. The defaults: nothing does."""

    name: str = "quiet"
    #: Chance per request of each kind.
    kinds: tuple[tuple[str, float], ...] = ()
    #: Chance per request that the process stands still, and for how long at most.
    pause: float = 0.0
    longest_pause: float = 0.0
    #: The share of these pauses in which the whole machine is suspended, and its monotonic clock stands still.
    suspends: float = 0.0
    #: Functions are frozen between their invocations, and their monotonic clocks stand still meanwhile.
    freezes: bool = False
    #: Chance per request that someone sets the process's wall clock, forward or back.
    wall_steps: float = 0.0
    #: The longest that a request or an answer is on its way, and the chance of it being slow at all.
    slow: float = 0.0
    slowest: float = 0.0
    #: Chances per event: lost, delivered twice, late.
    lost_events: float = 0.0
    double_events: float = 0.0
    late_events: float = 0.0
    #: Seconds that a wall clock is wrong by, at most.
    skew: float = 0.0
    drift: float = 0.0
    re_puts: bool = False
    equal_re_puts: bool = False
    #: Some PUTs are multipart uploads, which S3 dates by their start.
    multipart: bool = False
    operator: bool = False
    #: An operator changes the visibility timeout about this often, in seconds; 0: never.
    configures: float = 0.0
    #: The share of handlers that take longer than their lease; invocations may be told to stop.
    long_handlers: float = 0.0
    stops: bool = False
    #: The chance that a long-lived worker with a heartbeat pulls.
    pulls: float = 0.4
    #: There is no worker function: nobody else gets to the messages.
    pulls_only: bool = False
    #: The share of messages whose handlers send others.
    sends: float = 0.0
    #: Retries wait for long: there is time to do something to what waits.
    retries_long: bool = False
    #: No fault can cost a handler run: every message starts exactly as often as its script says.  [P5]
    exact: bool = False
    #: Nothing may need an expired lease or a rescue.
    undisturbed: bool = False

    @property
    def total(self) -> float:
        return sum(chance for _, chance in self.kinds)


_NETWORK = (("lost", 1.0), ("answer lost", 1.5), ("late", 1.5), ("contended", 1.0), ("retried", 1.5))
_CRASHES = (("crash before", 1.0), ("crash after", 2.0))


def _kinds(weights: tuple[tuple[str, float], ...], chance: float) -> tuple[tuple[str, float], ...]:
    whole = sum(weight for _, weight in weights)
    return tuple((kind, weight * chance / whole) for kind, weight in weights)


def draw_profile(chance: random.Random) -> Profile:
    """One of the ways in which a day can go wrong."""
    number = chance.random()
    often = chance.choice((0.03, 0.08, 0.15))
    freezes = chance.random() < 0.6
    if number < 0.04:
        # Nothing goes wrong, and one who changes settings takes no message away from whoever works on it.
        return Profile(
            name="settings",
            lost_events=1.0,
            pulls=1.0,
            pulls_only=True,
            long_handlers=0.8,
            configures=6.0,
            exact=True,
            undisturbed=True,
        )
    if number < 0.12:
        kinds = _kinds((("contended", 2.0), ("retried", 1.0)), chance.choice((0.1, 0.25)))
        return Profile(name="calm", kinds=kinds, skew=20.0, exact=True, undisturbed=True, freezes=freezes)
    if number < 0.22:
        kinds = _kinds((("contended", 1.0), ("retried", 1.0)), chance.choice((0.0, 0.1)))
        return Profile(
            name="busy",
            kinds=kinds,
            skew=20.0,
            lost_events=0.1,
            double_events=0.3,
            re_puts=True,
            stops=True,
            exact=True,
            freezes=freezes,
        )
    # Of Profile's fields, whose kinds differ: mypy looks at a dict's values all at once.
    events: dict[str, Any] = {"lost_events": 0.15, "double_events": 0.2, "late_events": 0.2}
    plays: dict[str, Any] = {
        "re_puts": chance.random() < 0.6,
        "operator": chance.random() < 0.3,
        "stops": chance.random() < 0.3,
    }
    plays["configures"] = chance.choice((0.0, 0.0, 8.0))
    plays["multipart"] = plays["re_puts"] and chance.random() < 0.4
    plays["equal_re_puts"] = plays["re_puts"] and chance.random() < 0.5
    clocks: dict[str, Any] = {"skew": chance.choice((0.0, 3.0, 100.0)), "drift": chance.choice((0.0, 0.01))}
    clocks |= {"freezes": freezes, "wall_steps": chance.choice((0.0, 0.0, 0.03))}
    slow: dict[str, Any] = {"slow": chance.choice((0.03, 0.15)), "slowest": chance.choice((1.0, 4.0, 9.0))}
    if number < 0.34:
        return Profile(name="network", kinds=_kinds(_NETWORK, often), **events, **plays, **clocks, **slow)
    if number < 0.47:
        return Profile(name="crashes", kinds=_kinds(_CRASHES, often), **events, **plays, **clocks)
    pauses: dict[str, Any] = {
        "pause": chance.choice((0.04, 0.1, 0.25)),
        "longest_pause": chance.choice((7.0, 14.0, 25.0)),
        "suspends": chance.choice((0.0, 0.5)),
    }
    if number < 0.60:
        # Heartbeats matter when handlers outlast their leases: few events, so that the pull worker gets to them.
        events["lost_events"] = 0.8
        pauses["pause"] = max(pauses["pause"], 0.1)
        kinds = _kinds(_NETWORK + _CRASHES, chance.choice((0.0, 0.05)))
        return Profile(
            name="heartbeats", kinds=kinds, long_handlers=0.6, pulls=1.0, **pauses, **events, **plays, **clocks, **slow
        )
    if number < 0.77:
        return Profile(name="zombies", long_handlers=0.4, **pauses, **events, **plays, **clocks, **slow)
    return Profile(
        name="everything",
        kinds=_kinds(_NETWORK + _CRASHES, often),
        long_handlers=chance.choice((0.0, 0.3)),
        **pauses,
        **events,
        **plays,
        **clocks,
        **slow,
    )


class DrawnFaults:
    """Draws a fault, or mostly none, for every request, until `stop`."""

    def __init__(self, profile: Profile, chance: random.Random) -> None:
        self.profile = profile
        self.is_over = False
        self._chance = chance
        self._latency = chance.choice((0.01, 0.05, 0.3))
        #: (process, key) → refusals in a row.
        self._refused: Counter[tuple[str, str]] = Counter()
        #: Name → how many of its next PUTs are lost, however late it is.
        self.losing: Counter[str] = Counter()

    def draw(self, process: Process, operation: str, key: str) -> Fault:
        chance, profile = self._chance, self.profile
        fault = Fault(there=chance.random() * self._latency)
        if self.loses(operation, key):
            fault.kind = "lost"
        if fault.kind or self.is_over:
            return fault
        # A fault in the middle of the protocol tells more than one in a LIST.
        if (operation == "list" or key.endswith(_PUBLISHED)) and chance.random() < 0.85:
            return fault
        if profile.slow and chance.random() < profile.slow:
            fault.there = chance.random() * profile.slowest
        if profile.slow and chance.random() < profile.slow:
            fault.back = chance.random() * profile.slowest
        if profile.pause and chance.random() < profile.pause:
            fault.pause = chance.random() * profile.longest_pause
            fault.suspends = chance.random() < profile.suspends
        if profile.wall_steps and chance.random() < profile.wall_steps:
            fault.wall_step = chance.uniform(-60.0, 30.0)
        number = chance.random()
        if process.name.startswith(_CALLERS) and not profile.exact:
            # They send few requests, and what they are told is judged: a third of these may go wrong.
            number = number * profile.total * 3 if chance.random() < 0.5 else number
        if number >= profile.total:
            if operation in ("put", "delete", "delete_many"):
                self._refused.pop((process.name, key), None)
            return fault
        kind = self._kind(number)
        if self._applies(kind, process, operation, key):
            fault.kind = kind
            # No answer: known at once, or only when the client's patience is over.
            fault.back = fault.back or chance.random() * (9.0 if chance.random() < 0.2 else self._latency)
            fault.later = chance.random() * 12.0
            if profile.exact:
                fault.back = 0.0
        return fault

    def loses(self, operation: str, key: str) -> bool:
        name = key.rpartition("/")[2]
        is_lost = operation == "put" and self.losing[name] > 0
        self.losing[name] -= is_lost
        return is_lost

    def _kind(self, number: float) -> str:
        for kind, share in self.profile.kinds:
            number -= share
            if number < 0:
                return kind
        return ""

    def _applies(self, kind: str, process: Process, operation: str, key: str) -> bool:
        writes = operation in ("put", "delete", "delete_many", "copy")
        if kind == "late":
            return writes
        if kind in ("contended", "retried"):
            conditional = operation == "delete" or (operation == "put" and key.split("/", 2)[1] in _CONDITIONAL)
            # S3 does not refuse for ever: more than two in a row would be an outage.
            self._refused[process.name, key] += conditional
            return conditional and self._refused[process.name, key] <= 2
        return True


class ScriptedFaults:
    """Named processes meet a fault at their n-th request; everything else is answered at once."""

    def __init__(self, script: Mapping[str, tuple[int, Fault]]) -> None:
        self._script = script
        #: Process → what it asked, in order: for the enumeration.
        self.log: dict[str, list[tuple[str, str]]] = {}

    def draw(self, process: Process, operation: str, key: str) -> Fault:
        self.log.setdefault(process.name, []).append((operation, key))
        number, fault = self._script.get(process.name, (0, None))
        return replace(fault, there=0.01) if fault and number == process.requests else Fault(there=0.01)
