"""The processes of a run, and who torments them: kill -9, SIGSTOP for longer than a lease, SIGTERM, outages."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from support.fault_proxy import FaultProxy

from . import history, roles
from .place import Place
from .platform import Platform

PULL_WORKERS = 3
CLIENTS = 2
#: Longer than a lease, S3's grain, and the time until someone else gets the messages.
PAUSE_SECONDS = (4.5, 9.0)
#: How much of the requests meets a fault: in a round one of these; more in an outage, which lasts this long.
USUAL_RATES, OUTAGE_RATE = (0.02, 0.05, 0.12), 0.6
OUTAGE_SECONDS = (1.0, 4.0)
#: A run without these would prove little.
ALWAYS = ("pull workers killed", "functions killed")
#: Between two torments.
INTERVAL_SECONDS = (0.5, 1.5)
ROOT = Path(__file__).resolve().parents[3]
PATHS = [str(ROOT / "functions"), str(ROOT / "tests"), str(ROOT)]


class Processes:
    """Starts processes by role, forked from one that has imported everything: a new one works within a moment."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([roles.__name__, "s3queue.stores.s3", "s3queue.stores.direct"])
        before = os.environ.get("PYTHONPATH")
        # The server gets this process's sys.path too late for what it imports in advance.
        os.environ["PYTHONPATH"] = os.pathsep.join(PATHS)
        forkserver.ensure_running()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before

    def start(self, role: Callable[..., None], *arguments: object) -> BaseProcess:
        process = self._context.Process(target=role, args=(self._place, *arguments), daemon=True)
        process.start()
        return process

    def environment(self, function: str, connection: Connection) -> BaseProcess:
        return self.start(roles.serve, function, connection)


@dataclass
class Torment:
    """The pull workers, clients and operator of a run, and what is done to them and to the functions."""

    processes: Processes
    platform: Platform
    proxy: FaultProxy
    chance: random.Random
    #: Messages a second, of all clients.
    rate: float
    #: The part of the requests that meets a fault.
    faults: float = USUAL_RATES[1]
    counts: Counter[str] = field(default_factory=Counter)
    pull_workers: list[BaseProcess] = field(default_factory=list)
    clients: list[BaseProcess] = field(default_factory=list)
    operators: list[BaseProcess] = field(default_factory=list)
    #: Process id → when it goes on.
    _paused: dict[int, float] = field(default_factory=dict)

    def begin(self) -> None:
        self.pull_workers = [self.processes.start(roles.pull) for _ in range(PULL_WORKERS)]
        self.clients = [self._client() for _ in range(CLIENTS)]
        self.operators = [self.processes.start(roles.operate, self.chance.random())]

    def _client(self) -> BaseProcess:
        return self.processes.start(roles.produce, self.chance.random(), self.rate / CLIENTS)

    def run(self, seconds: float, progress: Callable[[], None]) -> None:
        """For so many seconds, and until nothing is missing; then everything that is paused goes on."""
        acts = {
            self._kill_pull_worker: 4,
            self._pause_pull_worker: 3,
            self._stop_pull_worker: 1,
            self._kill_function: 3,
            self._pause_function: 2,
            self._kill_driver: 2,
            self._pause_driver: 1,
            self._kill_client: 1,
            self._cut_off: 2,
            self._disturb_emr: 2,
        }
        deck: list[Callable[[], bool]] = []
        self.proxy.rate = self.faults
        began = time.monotonic()
        while (lasted := time.monotonic() - began) < seconds or (lasted < 4 * seconds and self.missing()):
            self._pass(self.chance.uniform(*INTERVAL_SECONDS), progress)
            if not deck:
                deck = [act for act, count in acts.items() for _ in range(count)]
                self.chance.shuffle(deck)
            # The first that has a victim now.
            for act in list(deck):
                if act():
                    deck.remove(act)
                    break
        self.proxy.rate = 0.0
        while self._paused:
            self._pass(0.1, progress)

    def missing(self) -> list[str]:
        """What every run has to have seen, and this one has not yet."""
        return self.proxy.missing() + [name for name in ALWAYS if not self.counts[name]]

    def keep_up(self, until: Callable[[], bool], seconds: float, progress: Callable[[], None]) -> None:
        """Torment no more, but replace workers that messages kill, until it is enough, or for so many seconds."""
        over_at = time.monotonic() + seconds
        while time.monotonic() < over_at and not until():
            self._pass(0.5, progress)

    def _pass(self, seconds: float, progress: Callable[[], None]) -> None:
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            for pid in [pid for pid, at in self._paused.items() if at <= now]:
                del self._paused[pid]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self._replace_dead()
            progress()
            time.sleep(min(0.1, max(0.0, until - now)))

    def _replace_dead(self) -> None:
        """Handlers may kill their process. One that ends by itself with another code has a bug."""
        for place, process in enumerate(self.pull_workers):
            if process.exitcode is not None:
                # SIGTERM may arrive before it has begun to listen.
                if process.exitcode not in (-signal.SIGKILL, -signal.SIGTERM, 0):
                    raise RuntimeError(f"a pull worker ended by itself with code {process.exitcode}")
                self.pull_workers[place] = self.processes.start(roles.pull)

    # What is done; False: there is no victim now

    def _kill_pull_worker(self) -> bool:
        return self._kill("pull workers killed", [one.pid for one in self.pull_workers])

    def _pause_pull_worker(self) -> bool:
        if sum(one.pid in self._paused for one in self.pull_workers) >= PULL_WORKERS - 1:
            return False
        return self._pause("pull workers paused", [one.pid for one in self.pull_workers])

    def _stop_pull_worker(self) -> bool:
        """A deployment: SIGTERM, and the messages that it holds are finished or given back."""
        pid = self._victim([one.pid for one in self.pull_workers])
        return pid is not None and self._signal("pull workers stopped", pid, signal.SIGTERM)

    def _kill_function(self) -> bool:
        return self._kill("functions killed", self._busy())

    def _pause_function(self) -> bool:
        return self._pause("functions paused", self._busy())

    def _busy(self) -> list[int | None]:
        functions = self.platform.functions.values()
        return [one.process.pid for function in functions for one in function.environments() if one.is_busy]

    def _kill_driver(self) -> bool:
        return self._kill("drivers killed", self._drivers())

    def _pause_driver(self) -> bool:
        return self._pause("drivers paused", self._drivers())

    def _drivers(self) -> list[int | None]:
        return [job.process.pid for job in self.platform.drivers() if job.process]

    def _kill_client(self) -> bool:
        place = self.chance.randrange(CLIENTS)
        if not self._kill("clients killed", [self.clients[place].pid]):
            return False
        self.clients[place].join()
        self.clients[place] = self._client()
        return True

    def _cut_off(self) -> bool:
        self.counts["outages"] += 1
        self.proxy.rate = OUTAGE_RATE
        self._pass(self.chance.uniform(*OUTAGE_SECONDS), lambda: None)
        self.proxy.rate = self.faults
        return True

    def _disturb_emr(self) -> bool:
        emr = self.platform.emr
        if emr.throttled or emr.lost_answers:
            return False
        if self.chance.random() < 0.5:
            emr.throttled = 1
        else:
            emr.lost_answers = 1
        self.counts["starts of Spark runs refused or unanswered"] += 1
        return True

    def _victim(self, pids: list[int | None]) -> int | None:
        found = [pid for pid in pids if pid is not None and pid not in self._paused]
        return self.chance.choice(found) if found else None

    def _kill(self, what: str, pids: list[int | None]) -> bool:
        pid = self._victim(pids)
        return pid is not None and self.kill(what, pid)

    def _pause(self, what: str, pids: list[int | None]) -> bool:
        pid = self._victim(pids)
        if pid is None or not self._signal(what, pid, signal.SIGSTOP):
            return False
        self._paused[pid] = time.monotonic() + self.chance.uniform(*PAUSE_SECONDS)
        return True

    def kill(self, what: str, pid: int) -> bool:
        return self._signal(what, pid, signal.SIGKILL)

    def _signal(self, what: str, pid: int, number: int) -> bool:
        name = {signal.SIGKILL: "killed", signal.SIGSTOP: "paused", signal.SIGTERM: "stopped"}[signal.Signals(number)]
        # Told before: what the process does until the signal arrives is not held against it.
        history.tell(name, pid=pid)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        self.counts[what] += 1
        return True

    # The end

    def end_clients(self) -> None:
        """The clients and the operator end after their present call."""
        for process in (*self.clients, *self.operators):
            process.terminate()
        for process in (*self.clients, *self.operators):
            process.join(timeout=60)
            if process.exitcode not in (0, -signal.SIGTERM):
                raise RuntimeError(f"a client ended with code {process.exitcode} when asked to stop")

    def end_workers(self) -> None:
        for process in self.pull_workers:
            process.terminate()
        for process in self.pull_workers:
            process.join(timeout=60)
            if process.exitcode not in (0, -signal.SIGKILL, -signal.SIGTERM):
                raise RuntimeError(f"a pull worker ended with code {process.exitcode} when asked to stop")


@contextlib.contextmanager
def tormenting(torment: Torment) -> Iterator[Torment]:
    """Whatever happens, no process is left."""
    try:
        yield torment
    finally:
        for process in (*torment.pull_workers, *torment.clients, *torment.operators):
            process.kill()
            process.join()
