"""AWS, as far as the functions notice it: S3's events, Lambda, EMR Serverless.

Functions are processes that are frozen between invocations (SIGSTOP) and killed at their time limit, with all that they
remembered. Events are lost, late and doubled. EMR Serverless is the one of `infra/local`, with a driver per job.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote

from infra.local.emr.job_runs import JobRun
from infra.local.emr.serverless import EmrServerless
from support.outside_services import HttpEndpoint, Request

from .place import APPLICATION, ASSETS, FUNCTION_SECONDS, MINUTE_SECONDS, SWEEPER, SWEEPER_SECONDS, WORKERS, Place

#: Starts a process of a function; the connection is its own end of a pipe.
Start = Callable[[str, Connection], BaseProcess]
#: Function → how many of its environments run at one time, and its time limit.
FUNCTIONS = {WORKERS["served"]: (3, FUNCTION_SECONDS), WORKERS["heavy"]: (2, FUNCTION_SECONDS)} | {
    SWEEPER: (2, SWEEPER_SECONDS)
}
EVENTS_LOST, EVENTS_DOUBLED, EVENTS_LATE = 0.06, 0.06, 0.1
LATE_SECONDS = (1.0, 5.0)
COLD_START_SECONDS = 60.0


@dataclass(eq=False)
class Environment:
    """One process of a function."""

    process: BaseProcess
    connection: Connection
    is_busy: bool = False

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(self.process.pid, number)  # type: ignore[arg-type]

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class Function:
    """Runs its invocations, each in an environment, several at a time."""

    def __init__(self, name: str, start: Callable[[str], Environment], counts: Counter[str]) -> None:
        environments, self._limit = FUNCTIONS[name]
        self._name = name
        self._start = start
        self._counts = counts
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._places: list[Environment | None] = [None] * environments
        self._threads = [threading.Thread(target=self._serve, args=(place,)) for place in range(environments)]
        for thread in self._threads:
            thread.start()

    def invoke(self, event: Any) -> None:
        self._events.put(event)

    def waiting(self) -> int:
        return self._events.qsize() + sum(one.is_busy for one in self.environments())

    def environments(self) -> list[Environment]:
        return [one for one in self._places if one]

    def end(self) -> None:
        for _ in self._threads:
            self._events.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self, place: int) -> None:
        while (event := self._events.get()) is not None:
            environment = self._places[place]
            if environment is None:
                environment = self._places[place] = self._start(self._name)
            if not self._invoke(environment, event):
                self._places[place] = None
                environment.end()
        left = self._places[place]
        if left:
            left.end()

    def _invoke(self, environment: Environment, event: Any) -> bool:
        """Whether the environment can be used again."""
        environment.signal(signal.SIGCONT)
        environment.is_busy = True
        try:
            environment.connection.send((event, self._limit))
            if not environment.connection.poll(self._limit):
                self._counts[f"killed at its time limit: {self._name}"] += 1
                return False
            environment.connection.recv()
        except (EOFError, OSError):
            return False  # it was killed, or killed itself
        finally:
            environment.is_busy = False
        environment.signal(signal.SIGSTOP)
        return True


@dataclass
class LambdaService(HttpEndpoint):
    """Lambda's Invoke. Some requests are throttled, some answers get lost after the invocation was accepted."""

    invoke: Callable[[str, Any], None] = lambda function, event: None
    #: Called for each request: 429, 0 (no answer), or 202.
    status_of: Callable[[], int] = lambda: 202

    def answer(self, to: BaseHTTPRequestHandler, request: Request) -> None:
        status = self.status_of()
        if status != 429:
            self.invoke(unquote(request.path.split("/")[-2]), json.loads(request.body))
        if status:
            body = b"" if status == 202 else b'{"message": "Rate Exceeded."}'
            to.send_response(status)
            if status == 429:
                to.send_header("x-amzn-ErrorType", "TooManyRequestsException")
            to.send_header("Content-Length", str(len(body)))
            to.end_headers()
            to.wfile.write(body)


@dataclass
class Platform:
    """The functions of the run, and who invokes them."""

    seed: float
    #: Whether events get lost and services refuse; set to False for the quiet end.
    is_faulty: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    functions: dict[str, Function] = field(default_factory=dict)
    emr: EmrServerless = field(init=False)
    service: LambdaService = field(init=False)
    bucket: str = ""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._mutex = threading.Lock()
        self._over = threading.Event()

    def draw(self) -> float:
        with self._mutex:
            return self._chance.random()

    def created(self, key: str, size: int, etag: str) -> None:
        """S3 stored an object; those of a queue with a worker function notify it, usually."""
        name, _, rest = key.partition("/")
        function = WORKERS.get(name)
        if function is None or not rest.startswith("messages/"):
            return
        record = {
            "eventVersion": "2.1",
            "eventName": "ObjectCreated:Put",
            "eventTime": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
            "s3": {
                "bucket": {"name": self.bucket},
                "object": {"key": quote_plus(key, safe="/"), "size": size, "eTag": etag},
            },
        }
        kind = self.draw() if self.is_faulty else 1.0
        if kind < EVENTS_LOST:
            self.counts["events lost"] += 1
            return
        if kind < EVENTS_LOST + EVENTS_DOUBLED:
            self.counts["events doubled"] += 1
            self.invoke(function, {"Records": [record]})
        elif kind < EVENTS_LOST + EVENTS_DOUBLED + EVENTS_LATE:
            self.counts["events late"] += 1
            wait = LATE_SECONDS[0] + self.draw() * (LATE_SECONDS[1] - LATE_SECONDS[0])
            timer = threading.Timer(wait, self.invoke, (function, {"Records": [record]}))
            timer.daemon = True
            timer.start()
            return
        self.invoke(function, {"Records": [record]})

    def invoke(self, function: str, event: Any) -> None:
        if not self._over.is_set():
            self.functions[function].invoke(event)

    def waiting(self) -> int:
        """Invocations of the worker functions that wait or run."""
        return sum(one.waiting() for name, one in self.functions.items() if name != SWEEPER)

    def drivers(self) -> list[JobRun]:
        return [job for job in self.emr.jobs.values() if job.process and job.process.poll() is None]

    def _status(self) -> int:
        kind = self.draw() if self.is_faulty else 1.0
        if kind < 0.05:
            self.counts["invocations throttled"] += 1
            return 429
        if kind < 0.1:
            self.counts["answers of Lambda lost"] += 1
            return 0
        return 202

    def _job_changed(self, event: Any) -> None:
        """EventBridge tells the sweeper function, at its best effort."""
        if not self.is_faulty or self.draw() < 0.6:
            self.invoke(SWEEPER, dict(event))

    def _every_minute(self) -> None:
        while True:
            self.invoke(SWEEPER, {"source": "aws.events"})
            if self._over.wait(MINUTE_SECONDS):
                return

    @contextlib.contextmanager
    def running(self, folder: Path, python_path: str) -> Iterator[None]:
        """Serve Lambda's and EMR's APIs; functions run from `open` on."""
        with LambdaService.serve() as self.service:
            self.service.invoke, self.service.status_of = self.invoke, self._status
            jobs = folder / "jobs"
            with EmrServerless(
                jobs,
                application=APPLICATION,
                environment={"PYTHONPATH": python_path},
                on_change=self._job_changed,
                command=self._command,
                assets=(ASSETS,),
            ) as self.emr:
                try:
                    yield
                finally:
                    self._over.set()
                    for function in self.functions.values():
                        function.end()
                    for job in self.drivers():
                        assert job.process
                        job.process.kill()

    def open(self, place: Place, start: Start) -> None:
        self._place, self.bucket = place, place.bucket

        def environment(name: str) -> Environment:
            import multiprocessing

            ours, theirs = multiprocessing.Pipe()
            process = start(name, theirs)
            theirs.close()
            # An invocation's time counts from here: on a busy machine, a cold start takes as long as an invocation.
            with contextlib.suppress(EOFError, OSError):
                if ours.poll(COLD_START_SECONDS):
                    ours.recv()
            return Environment(process, ours)

        self.functions = {name: Function(name, environment, self.counts) for name in FUNCTIONS}
        threading.Thread(target=self._every_minute, daemon=True).start()

    def _command(self, job: JobRun) -> list[str]:
        return [sys.executable, "-m", "simulation.real.driver", self._place.to_json(), str(job.request["name"])]
