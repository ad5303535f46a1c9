"""What the history says about claims and runs: two live leases, two outcomes, runs after the end, and times."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from .history import Json

FOREVER = float("inf")
#: Each thread of a pull worker has something to do more often than this.
SILENT_SECONDS = 20.0


def double_live_leases(events: Iterable[Json]) -> list[str]:
    """Two claims of one message that were both alive in the eyes of their holders at some moment.  [P2]"""
    ordered = sorted(events, key=lambda event: float(event["at"]))
    killed = {event["pid"]: event["at"] for event in ordered if event["event"] in ("killed", "crashes")}
    # Who claims in a run's name and does not drive it starts no handler: it hands the claims over.
    drivers = {event["pid"] for event in ordered if event["event"] == "drives"}
    #: (queue, path, fence) → begin, deadline, when it was given up
    claims: dict[tuple[str, str, str], tuple[float, float, float]] = {}
    for event in ordered:
        if event["event"] not in ("held", "given up"):
            continue
        if event.get("owner", "").startswith("run-") and event["pid"] not in drivers:
            continue
        which = (event.get("queue", ""), event["path"], event["fence"])
        if event["event"] == "given up":
            if which in claims:
                begin, deadline, given_up = claims[which]
                claims[which] = (begin, deadline, min(given_up, event["at"]))
            continue
        deadline = min(event["until"], killed.get(event["pid"], FOREVER))
        is_ended = event["until"] <= event["at"]
        if which not in claims:
            # An answer that came after its lease had run out: nothing was ever held.
            if not is_ended:
                claims[which] = (event["at"], deadline, FOREVER)
        elif claims[which][2] == FOREVER:
            # Moves after the claim was given up are the writing of a waiting lease, not a holding on. Nor is the end of
            # one whose process stood still until long after its deadline.
            begin, known, _ = claims[which]
            claims[which] = (begin, min(known, deadline) if is_ended else deadline, FOREVER)
    by_path: defaultdict[tuple[str, str], list[tuple[float, float, str]]] = defaultdict(list)
    for (queue, path, fence), (begin, deadline, given_up) in claims.items():
        by_path[queue, path].append((begin, min(deadline, given_up), fence))
    doubles = []
    for (queue, path), intervals in by_path.items():
        intervals.sort()
        for earlier, later in pairwise(intervals):
            if later[0] < earlier[1]:
                overlap = earlier[1] - later[0]
                doubles.append(f"{queue}/{path}: {later[2]} began {overlap:.3f} s before {earlier[2]} was over")
    return doubles


def conflicting_outcomes(events: Iterable[Json]) -> list[str]:
    """Two records for one generation of a message: whoever asked must always have been told of the same one.  [P3]"""
    told: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
    for event in events:
        if event["event"] == "recorded":
            told[event.get("queue", ""), event["path"], str(event["generation"])].add(event["nonce"])
    return [f"{queue}/{path}: {len(nonces)} outcomes" for (queue, path, _), nonces in told.items() if len(nonces) > 1]


def runs_after_the_end(events: Iterable[Json], repeated: set[tuple[str, str]]) -> list[str]:
    """Handlers that began after a live owner had recorded the completion of the same generation.  [P4]

    `repeated`: messages that were asked for more than once, by queue and path: equal bytes within one second of S3's
    clock are one generation.
    """
    ended: dict[tuple[str, str, str], float] = {}
    late = []
    for event in sorted(events, key=lambda event: float(event["at"])):
        if event["event"] not in ("recorded", "start"):
            continue
        which = (event["queue"], event["path"], str(event["generation"]))
        if event["event"] == "recorded" and event["alive"] and event["outcome"] == "completed":
            ended.setdefault(which, event["at"])
        elif event["event"] == "start" and which in ended and which[:2] not in repeated:
            after = event["at"] - ended[which]
            late.append(f"{event['queue']}/{event['path']} line {event['line']}: began {after:.3f} s after its record")
    return late


def starts_beyond(events: Iterable[Json], most: int, repeated: set[tuple[str, str]]) -> list[str]:
    """Messages, or lines, whose handler began more often than it may.  [P5]"""
    fences: defaultdict[tuple[str, str, int, str], set[str]] = defaultdict(set)
    for event in events:
        if event["event"] == "start" and (event["queue"], event["path"]) not in repeated:
            which = (event["queue"], event["path"], event["line"], str(event["generation"]))
            fences[which].add(event["fence"])
    return [
        f"{queue}/{path} line {line}: {len(found)} starts"
        for (queue, path, line, _), found in fences.items()
        if len(found) > most
    ]


AFTER_A_FAULT = "its lease was lost to a fault"


def runs_beyond_the_first(events: Iterable[Json]) -> Counter[str]:
    """How often a handler ran again, and why."""
    ordered = sorted(events, key=lambda event: float(event["at"]))
    raised = {(event["path"], event["line"], event["fence"]) for event in ordered if event["event"] == "raised"}
    fates: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
    runs: defaultdict[tuple[str, str, int, str], list[Json]] = defaultdict(list)
    for event in ordered:
        if event["event"] in ("killed", "crashes", "paused"):
            fates[event["pid"]].append((event["at"], event["event"]))
        elif event["event"] == "start":
            runs[event["queue"], event["path"], event["line"], event["id"]].append(event)
    why: Counter[str] = Counter()
    for (_, path, line, _), starts in runs.items():
        for before, after in pairwise(starts):
            suffered = {fate for at, fate in fates[before["pid"]] if at < after["at"]}
            if before["generation"] != after["generation"]:
                why["it was enqueued or replayed again"] += 1
            elif (path, line, before["fence"]) in raised:
                why["it failed, as planned"] += 1
            elif suffered & {"killed", "crashes"}:
                why["its process was killed"] += 1
            elif "paused" in suffered:
                why["its process was paused"] += 1
            else:
                why[AFTER_A_FAULT] += 1
    return why


def redeliveries(events: Iterable[Json], queue: str) -> list[float]:
    """Seconds from the kill of a process to the next start of each message whose handler it was running."""
    running: defaultdict[int, dict[tuple[str, int], str]] = defaultdict(dict)
    waiting: dict[tuple[str, int], float] = {}
    seconds = []
    for event in sorted(events, key=lambda event: float(event["at"])):
        match event["event"]:
            case "start" if event["queue"] == queue:
                which = (event["path"], event["line"])
                if which in waiting:
                    seconds.append(event["at"] - waiting.pop(which))
                running[event["pid"]][which] = event["fence"]
            case "returned" | "raised":
                running[event["pid"]].pop((event["path"], event["line"]), None)
            case "killed" | "crashes":
                waiting |= dict.fromkeys(running.pop(event["pid"], {}), float(event["at"]))
    return seconds


def waits(events: Iterable[Json], queue: str) -> list[float]:
    """Seconds from the call that enqueued a message, to run at once, to its first start."""
    called: dict[str, float] = {}
    seconds = []
    for event in sorted(events, key=lambda event: float(event["at"])):
        if event["event"] == "invoked" and event["operation"].startswith("enqueue") and event["queue"] == queue:
            if not event.get("delay"):
                called |= {body["id"]: event["at"] for body in event["bodies"]}
        elif event["event"] == "start" and event["id"] in called:
            seconds.append(event["at"] - called.pop(event["id"]))
    return seconds


def threads_that_died(events: Iterable[Json]) -> list[str]:
    """Threads that met an error, and did nothing more although their process went on for long."""
    broke: dict[tuple[int, str], float] = {}
    last: dict[int, float] = {}
    for event in sorted(events, key=lambda event: float(event["at"])):
        # Whoever kills a process or stops it tells that under the process's id.
        if event["event"] not in ("killed", "paused", "stopped"):
            last[event["pid"]] = event["at"]
        if event["event"] == "thread broke":
            broke[event["pid"], event["thread"]] = event["at"]
        elif event["event"] == "thread went on":
            broke.pop((event["pid"], event["thread"]), None)
    lasted = [(role, pid, last[pid] - at) for (pid, role), at in broke.items()]
    return [
        f"the {role} thread of {pid} ended {seconds:.0f} s before its process"
        for role, pid, seconds in lasted
        if seconds > SILENT_SECONDS
    ]
