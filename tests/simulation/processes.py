"""Proof, part 4: real worker processes on a real S3 server, killed and paused at random, and nothing is lost.

Every process appends what it does to one log: a claim, each move of its deadline, the moment it gives the claim up,
every start and end of a handler, every outcome that it wrote or found. CLOCK_MONOTONIC is the same for all processes
of a machine, so the log can say afterwards whether two of them believed to hold one message at the same time.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from s3queue import Claim, Context, Queue, QueueError, QueueSettings, Record, Reject, Worker, connect
from s3queue.documents.dead_letter import messages_of
from s3queue.keys import without_mark
from s3queue.protocol.claiming import Claiming
from s3queue.protocol.lease_protocol import LeaseProtocol
from s3queue.protocol.outcomes import Outcomes
from s3queue.store import listing
from support.s3_servers import fresh_bucket, s3_client, seaweedfs_server

WORKERS = 4
VISIBILITY_SECONDS = 3
SETTINGS = QueueSettings.of(
    visibility_timeout=VISIBILITY_SECONDS,
    max_attempts=6,
    retry_base=1,
    retry_cap=2,
    rescue_after=3,
    concurrency=3,
)
LINES_PER_BATCH = 10
#: Longer than a lease, S3's grain, and the time until a killed sweeper is replaced: someone else gets the messages.
PAUSE_SECONDS = (VISIBILITY_SECONDS + 8.0, VISIBILITY_SECONDS + 14.0)
DRAINED_WITHIN_SECONDS = 240.0
STARTED_WITHIN_SECONDS = 60.0

Json = dict[str, Any]
#: What has to become of each message, by path and line.
Plan = dict[tuple[str, int], Json]


def run(seconds: float, messages: int = 2000, *, seed: int = 20261116) -> Json:
    """Enqueue `messages` while workers are killed and paused for `seconds`, let the rest drain, and judge.

    Returns the columns of the proof: enqueued, completed, dead, lost, unexpected, duplicate outcomes, double live
    leases, runs beyond the first (by reason); and kills, pauses, seconds, seed and what was unexpected.
    """
    chance = random.Random(seed)
    with seaweedfs_server() as endpoint, tempfile.TemporaryDirectory(prefix="processes-") as folder:
        client = s3_client(endpoint)
        bucket = fresh_bucket(client)
        queue = connect(f"s3://{bucket}/orders", settings=SETTINGS, client=client)
        log = Path(folder) / "log"
        plan: Plan = {}
        with _crew(endpoint, bucket, log) as crew:
            began = time.monotonic()
            producer = threading.Thread(target=_produce, args=(queue, plan, messages, seconds * 0.8, chance.random()))
            producer.start()
            crew.torment(seconds, chance)
            producer.join()
            left = _drain(queue)
            crew.dismiss()
            took = time.monotonic() - began
        verdict = _judge(plan, [*_read(log), *crew.events], _outcomes(queue), left)
    return verdict | {"kills": crew.kills, "pauses": crew.pauses, "seconds": round(took, 1), "seed": seed}


# The worker process


def work(endpoint: str, bucket: str, log: str) -> None:
    """One worker process: the library's own Worker, observed."""
    # A paused process cannot see that its parent is gone; the kernel can.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    stream = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), "pid": os.getpid()} | fields)
        os.write(stream, line.encode() + b"\n")  # one write: appends of several processes do not mix

    _observe_deadlines(write)
    plain = connect(f"s3://{bucket}/orders", client=s3_client(endpoint), settings=SETTINGS)
    queue = _ObservedQueue(store=plain.store, name=plain.name, settings=SETTINGS)
    queue.observe(write)

    def handle(body: Json, context: Context) -> int:
        run_of = {"path": context.path, "line": context.line, "attempt": context.attempt, "fence": context.fence}
        write("start", **run_of)
        time.sleep(body["seconds"])
        if body["fate"] == "poison":
            write("failed", **run_of)
            raise Reject("poison") if body["number"] % 2 else ValueError("poison")
        if context.attempt <= body["failures"]:
            write("failed", **run_of)
            raise RuntimeError("not yet")
        write("returned", **run_of)
        return int(body["number"])

    Worker(queue, handle, poll_interval=0.3).run()


def _observe_deadlines(write: Any) -> None:
    """Log every claim and every move of its deadline, whoever moves it."""

    def observed(claim: Claim, name: str, value: Any) -> None:
        object.__setattr__(claim, name, value)
        if name in ("fence", "deadline") and hasattr(claim, "fence") and claim.fence:
            write("held", path=claim.message.path, fence=claim.fence, until=claim.deadline)

    Claim.__setattr__ = observed  # type: ignore[method-assign,assignment]


class _ObservedOutcomes(Outcomes):
    """Logs which record counts for a message, as this process was told."""

    def write_record(self, record: Record, is_alive: Callable[[], bool]) -> Record:
        written = Outcomes.write_record(self, record, is_alive)
        _WRITERS[id(self.store)](
            "recorded",
            path=written.path,
            nonce=written.nonce,
            outcome=written.outcome,
            generation=[written.generation.etag, written.generation.put_at.isoformat()],
        )
        return written


_WRITERS: dict[int, Any] = {}


class _ObservedQueue(Queue):
    """Logs when a claim is given up, before the request that does it is sent."""

    def observe(self, write: Any) -> None:
        _WRITERS[id(self.store)] = write
        self.outcomes = _ObservedOutcomes(self.store, self.keys, self.chance)
        # The parts that write records hold the outcomes that they were made with.
        self.leases = LeaseProtocol(self, self.outcomes)
        self._claiming = Claiming(self, self.leases)

    def _ends(self, claim: Claim) -> None:
        if claim.fence:
            _WRITERS[id(self.store)]("given up", path=claim.path, fence=claim.fence)

    def complete(self, claim: Claim, result: Any = None, **options: Any) -> Record:
        self._ends(claim)
        return Queue.complete(self, claim, result, **options)

    def complete_lines(self, claim: Claim, total: int, **options: Any) -> Record:
        self._ends(claim)
        return Queue.complete_lines(self, claim, total, **options)

    def fail(self, claim: Claim, *args: Any, **options: Any) -> Any:
        self._ends(claim)
        return Queue.fail(self, claim, *args, **options)

    def release(self, claim: Claim) -> None:
        self._ends(claim)
        Queue.release(self, claim)


# The crew and its tormentor


@dataclass
class _Crew:
    """The worker processes: always as many as there should be, however many were killed."""

    hire_one: Callable[[], BaseProcess]
    log: Path
    processes: dict[int, BaseProcess] = field(default_factory=dict)
    #: Process id → when it is to go on.
    paused: dict[int, float] = field(default_factory=dict)
    events: list[Json] = field(default_factory=list)
    kills: int = 0
    pauses: int = 0

    def hire(self) -> None:
        process = self.hire_one()
        assert process.pid is not None
        self.processes[process.pid] = process

    def torment(self, seconds: float, chance: random.Random) -> None:
        """Kill and pause processes that are at work; the time counts from when the first of them is."""
        give_up_at = time.monotonic() + STARTED_WITHIN_SECONDS
        while not self._at_work():
            if time.monotonic() > give_up_at:
                raise RuntimeError("no worker process began to work")
            time.sleep(0.05)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(chance.uniform(1.0, 2.2))
            self._wake(time.monotonic())
            victims = self._at_work()
            if not victims:
                continue
            victim = chance.choice(victims)
            if chance.random() < 0.5 or len(self.paused) >= WORKERS // 2:
                self._note("killed", victim)
                process = self.processes.pop(victim)
                process.kill()
                process.join()
                self.kills += 1
                self.hire()
            else:
                self._note("paused", victim)
                os.kill(victim, signal.SIGSTOP)
                self.paused[victim] = time.monotonic() + chance.uniform(*PAUSE_SECONDS)
                self.pauses += 1
        # Nobody is killed any more, so what the paused ones hold is given to others before they wake.
        while self.paused:
            time.sleep(0.2)
            self._wake(time.monotonic())

    def _at_work(self) -> list[int]:
        """Processes that have begun and are not paused: those are to wake, and find that they lost what they held."""
        for process in self.processes.values():
            if process.exitcode is not None:
                raise RuntimeError(f"a worker process ended by itself with code {process.exitcode}")
        begun = {event["pid"] for event in _read(self.log) if event["event"] == "start"}
        return sorted((begun & set(self.processes)) - set(self.paused))

    def _wake(self, now: float) -> None:
        for pid in [pid for pid, at in self.paused.items() if at <= now]:
            del self.paused[pid]
            os.kill(pid, signal.SIGCONT)

    def _note(self, event: str, pid: int) -> None:
        self.events.append({"event": event, "at": time.monotonic(), "pid": pid})

    def dismiss(self) -> None:
        """A graceful stop of all."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join(timeout=60)
            if process.exitcode != 0:
                raise RuntimeError(f"a worker process ended with code {process.exitcode} when asked to stop")


@contextlib.contextmanager
def _crew(endpoint: str, bucket: str, log: Path) -> Iterator[_Crew]:
    # Forked from a process that has imported everything: a new worker works within a moment, also on a busy machine.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "s3queue.stores.s3"])
    here = Path(__file__).resolve()
    before = os.environ.get("PYTHONPATH")
    # The server gets this process's sys.path too late for what it imports in advance.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here.parents[2] / "functions"), str(here.parents[1])])
    forkserver.ensure_running()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before

    def hire_one() -> BaseProcess:
        process = context.Process(target=work, args=(endpoint, bucket, str(log)), daemon=True)
        process.start()
        return process

    log.touch()
    crew = _Crew(hire_one, log)
    try:
        for _ in range(WORKERS):
            crew.hire()
        yield crew
    finally:
        for process in crew.processes.values():
            process.kill()
            process.join()


def _read(log: Path) -> list[Json]:
    """What was logged, without a line that is just being written."""
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("}\n")]


# The messages


def _produce(queue: Queue, plan: Plan, messages: int, seconds: float, seed: float) -> None:
    """Enqueue singles and batches, spread over the time; `plan` says what has to become of each."""
    chance = random.Random(seed)
    # About as much work as there is time, so that most processes are in the middle of something when they are hit.
    typical = WORKERS * SETTINGS.concurrency * seconds / messages
    bodies = [_body(number, typical, chance) for number in range(messages)]
    began = time.monotonic()
    position = 0
    while position < messages:
        size = LINES_PER_BATCH if chance.random() < 0.07 else 1
        chunk = bodies[position : position + size]
        if size == 1:
            path = _surely(lambda body=chunk[0]: queue.enqueue(body, priority=chance.choice([0, 0, 9])))
            plan[path, 0] = chunk[0]
        else:
            (path,) = _surely(lambda chunk=chunk: queue.enqueue_many(chunk, per_object=len(chunk)))
            plan.update({(path, line): body for line, body in enumerate(chunk, start=1)})
        position += size
        time.sleep(max(0.0, began + seconds * position / messages - time.monotonic()))


def _surely(enqueue: Any) -> Any:
    for _ in range(5):
        with contextlib.suppress(QueueError):
            return enqueue()
    return enqueue()


def _body(number: int, typical: float, chance: random.Random) -> Json:
    kind = chance.random()
    seconds = VISIBILITY_SECONDS + 1.5 if kind < 0.01 else chance.uniform(0.0, 1.5 * typical)
    fate, failures = ("poison", 0) if 0.1 < kind < 0.13 else ("fine", chance.choice([1, 2]) if 0.2 < kind < 0.27 else 0)
    return {"number": number, "fate": fate, "failures": failures, "seconds": round(seconds, 3)}


def _drain(queue: Queue) -> list[str]:
    """Wait until nothing is pending or at work; what is left if that never happens."""
    until = time.monotonic() + DRAINED_WITHIN_SECONDS
    while True:
        left = [
            entry.key
            for kind in ("messages", "delayed", "leases")
            for page in listing(queue.store, queue.keys.prefix(kind))
            for entry in page.objects
        ]
        if not left or time.monotonic() > until:
            return left
        time.sleep(1)


# The verdict


def _outcomes(queue: Queue) -> Json:
    """Every record, and every dead letter with its payload's message numbers."""
    records: dict[str, Record] = {}
    letters: dict[str, list[int]] = {}
    for page in listing(queue.store, queue.keys.prefix("records")):
        for entry in page.objects:
            found = queue.store.open(entry.key)
            if found:
                record = Record.from_bytes(found.read(), entry.key)
                records[record.path] = record
    for page in listing(queue.store, queue.keys.prefix("dead")):
        for entry in page.objects:
            found, path = queue.store.open(entry.key), queue.keys.path_under("dead", entry.key)
            if found and path:
                lines = [body for _, body in messages_of(without_mark(path), found.stream) if isinstance(body, bytes)]
                letters[path] = [json.loads(body)["number"] for body in lines]
    return {"records": records, "letters": letters}


def _judge(plan: Plan, events: list[Json], outcomes: Json, left: list[str]) -> Json:
    records: dict[str, Record] = outcomes["records"]
    buried = {number for numbers in outcomes["letters"].values() for number in numbers}
    columns: Counter[str] = Counter()
    surprises: list[str] = [f"left behind: {key}" for key in left]
    twice: list[str] = []
    for (path, line), body in plan.items():
        record = records.get(path)
        is_dead = body["number"] in buried
        if record is None:
            columns["lost"] += path not in " ".join(left)
            surprises.append(f"{path} has no record")
            continue
        # A batch's record counts its lines; which of them died is told by the dead letters.
        is_done = record.outcome == "completed" if not line else line in _completed_lines(record)
        columns["completed"] += is_done
        columns["dead"] += is_dead
        columns["lost"] += not is_done and not is_dead
        if is_done and is_dead:
            twice.append(f"{path} line {line} is completed and dead")
        was_interrupted = any(attempt.failure and attempt.failure.type == "LeaseExpired" for attempt in record.attempts)
        if is_dead and body["fate"] != "poison" and not was_interrupted:
            surprises.append(f"{path} line {line} died of {record.failure}")
        if is_done and body["fate"] == "poison":
            surprises.append(f"{path} line {line} is poison and completed")
    unknown = set(records) - {path for path, _ in plan}
    surprises += [f"record of nothing that was enqueued: {path}" for path in unknown]
    twice += conflicting_outcomes(events, records)
    doubles = double_live_leases(events)
    why = runs_beyond_the_first(events)
    if why[UNEXPLAINED]:
        surprises.append(f"{why[UNEXPLAINED]} handler runs that nothing explains")
    return {
        "enqueued": len(plan),
        "records observed": len({event["path"] for event in events if event["event"] == "recorded"}),
        "completed": columns["completed"],
        "dead": columns["dead"],
        "lost": columns["lost"],
        "unexpected": len(surprises),
        "duplicate outcomes": len(twice),
        "double live leases": len(doubles),
        "runs beyond the first": {reason: count for reason, count in why.items() if count},
        "details": [*surprises, *twice, *doubles][:20],
    }


def _completed_lines(record: Record) -> set[int]:
    """By their results: every handler returns one."""
    return {line for line, _ in (record.lines or {}).get("results", ())}


def conflicting_outcomes(events: list[Json], records: dict[str, Record]) -> list[str]:
    """Two records for one generation of a message: whoever asked must always have been told of the same one."""
    told: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for event in events:
        if event["event"] == "recorded":
            told[event["path"], str(event["generation"])].add(event["nonce"])
    conflicts = [f"{path}: {len(nonces)} outcomes" for (path, _), nonces in told.items() if len(nonces) > 1]
    conflicts += [
        f"{path}: the record is not the one that was told"
        for (path, _), nonces in told.items()
        if path in records and records[path].nonce not in nonces
    ]
    return conflicts


def double_live_leases(events: list[Json]) -> list[str]:
    """Two claims of one path that were both alive in the eyes of their holders at some moment."""
    killed = {event["pid"]: event["at"] for event in events if event["event"] == "killed"}
    claims: dict[tuple[str, str], list[float]] = {}
    for event in sorted(events, key=lambda event: event["at"]):
        if event["event"] not in ("held", "given up"):
            continue
        which = (event["path"], event["fence"])
        if event["event"] == "held" and which not in claims:
            claims[which] = [event["at"], min(event["until"], killed.get(event["pid"], float("inf"))), float("inf")]
        elif event["event"] == "held":
            # Moves after the claim was given up are the writing of a waiting lease, not a holding on.
            if claims[which][2] == float("inf"):
                claims[which][1] = min(event["until"], killed.get(event["pid"], float("inf")))
        elif which in claims:
            claims[which][2] = min(claims[which][2], event["at"])
    by_path: defaultdict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for (path, fence), (start, deadline, given_up) in claims.items():
        by_path[path].append((start, min(deadline, given_up), fence))
    doubles = []
    for path, intervals in by_path.items():
        intervals.sort()
        for earlier, later in pairwise(intervals):
            if later[0] < earlier[1]:
                doubles.append(f"{path}: {later[2]} began {earlier[1] - later[0]:.3f} s before {earlier[2]} was over")
    return doubles


UNEXPLAINED = "unexplained"


def runs_beyond_the_first(events: list[Json]) -> Counter[str]:
    """How often a handler ran again, and why."""
    ends = {(event["path"], event["line"], event["fence"]) for event in events if event["event"] == "failed"}
    fates: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
    for event in events:
        if event["event"] in ("killed", "paused"):
            fates[event["pid"]].append((event["at"], event["event"]))
    runs: defaultdict[tuple[str, int], list[Json]] = defaultdict(list)
    for event in events:
        if event["event"] == "start":
            runs[event["path"], event["line"]].append(event)
    why: Counter[str] = Counter()
    for (path, line), starts in runs.items():
        starts.sort(key=lambda event: event["at"])
        for before, after in pairwise(starts):
            suffered = {fate for at, fate in fates[before["pid"]] if at < after["at"]}
            if (path, line, before["fence"]) in ends:
                why["it failed, as planned"] += 1
            elif "killed" in suffered:
                why["its worker was killed"] += 1
            elif "paused" in suffered:
                why["its worker was paused beyond its lease"] += 1
            elif after["at"] - before["at"] > VISIBILITY_SECONDS:
                why["its worker was starved beyond its lease"] += 1
            else:
                why[UNEXPLAINED] += 1
    return why
