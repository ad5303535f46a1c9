"""JobRun: one EMR Serverless job on this machine: its states, and the real `spark-submit` behind them."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from s3queue.run_memory import CORES, RunMemory

from ..processes import command_of, end_group
from .memory import SECONDS, MemoryLimits, mib_of

ENDED = frozenset({"SUCCESS", "FAILED", "CANCELLED"})
#: What EMR's workers have and this machine has not, or has already.
NOT_HERE = ("spark.archives", "spark.dynamicAllocation.", "spark.emr-serverless.", "spark.executorEnv.")
TAIL_BYTES = 4000
PID_FILE = "pid"


@dataclass(eq=False)
class JobRun:
    """One job. `changed` is called after each change of its state, with the state before."""

    id: str
    application: str
    request: Mapping[str, Any]
    folder: Path
    environment: Mapping[str, str]
    changed: Callable[[JobRun, str], None]
    #: Turns `s3://…` into a local file.
    fetch: Callable[[str, Path], Path]
    #: What runs the job; tests of the service itself need no Spark.
    command: Callable[[JobRun], list[str]] | None = None
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    updated_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    state: str = "SUBMITTED"
    details: str = ""
    process: subprocess.Popen[bytes] | None = None
    #: What its Python may have, as it was asked for.
    memory: MemoryLimits = field(default_factory=lambda: MemoryLimits({}))
    _killed: str = ""
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def log(self) -> Path:
        """What Spark said."""
        return self.folder / "stderr"

    @property
    def output(self) -> Path:
        """What our own code said: spark-submit passes on all that Python writes, its errors too, as output."""
        return self.folder / "stdout"

    @property
    def _pid_file(self) -> Path:
        """There while the job runs: whoever outlives us finds it by this."""
        return self.folder / PID_FILE

    @property
    def logs(self) -> list[Path]:
        return [log for log in (self.output, self.log) if log.exists()]

    def execute(self) -> None:
        """From PENDING to an end, in the thread that calls this."""
        try:
            self.become("PENDING")
            self.folder.mkdir(parents=True, exist_ok=True)
            self.memory = MemoryLimits.of(self._settings())
            command = self.command(self) if self.command else self.spark_submit()
            self.become("SCHEDULED")
            self._run(command)
        except Exception as error:
            self.become("FAILED", f"{type(error).__name__}: {error}")

    def cancel(self) -> None:
        self._cancelled.set()
        if not self.has_ended:
            self.become("CANCELLING")
            if self.process:
                end_group(self.process.pid)

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def _run(self, command: list[str]) -> None:
        # Added to, because a process that was killed is noted there, too.
        with self.output.open("ab") as output, self.log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                # A group of its own: the JVM, the Python driver and its workers end together.
                start_new_session=True,
            )
        self._pid_file.write_text(str(self.process.pid))
        self.become("RUNNING")
        minutes = self.request.get("executionTimeoutMinutes") or 720
        deadline = time.monotonic() + float(minutes) * 60
        measured = time.monotonic()
        while (code := self.process.poll()) is None:
            if time.monotonic() > deadline:
                self.details = f"the job ran longer than its {minutes} minutes"
                self.cancel()
            elif self.is_cancelled:
                # Before there was a process to end.
                end_group(self.process.pid)
            elif time.monotonic() - measured > SECONDS:
                self._measure(self.process.pid)
                measured = time.monotonic()
            time.sleep(0.05)
        # What the driver started may outlive it for a moment, or for good.
        end_group(self.process.pid, grace=0.5)
        self._pid_file.unlink(missing_ok=True)
        if self.is_cancelled:
            self.become("CANCELLED", self.details)
        elif code == 0:
            self.become("SUCCESS")
        else:
            self.become("FAILED", f"exit code {code}: {self._killed or self._tail()}")

    def _measure(self, pid: int) -> None:
        if killed := self.memory.enforce(pid):
            self._killed = killed
            with self.log.open("a") as log:
                log.write(f"{killed}\n")

    def become(self, state: str, details: str = "") -> None:
        with self._mutex:
            if self.has_ended:
                return
            before, self.state, self.updated_at = self.state, state, datetime.now(UTC)
            self.details = details or self.details
        self.changed(self, before)

    def spark_submit(self) -> list[str]:
        """The job as a command of this machine; its code is fetched for it."""
        import pyspark

        from spark.runtime.session import LOCAL_SETTINGS

        spark = self.request["jobDriver"]["sparkSubmit"]
        given = list(options_of(spark.get("sparkSubmitParameters") or ""))
        settings = self._settings()
        kept = {name: value for name, value in settings.items() if not name.startswith(NOT_HERE)}
        # One JVM is the driver and one executor, with the cores that this has on EMR, whatever this machine has.
        usual = RunMemory().spark_settings()
        asked = [settings.get(name, usual[name]) for name in ("spark.driver.memory", "spark.executor.memory")]
        kept |= LOCAL_SETTINGS | {"spark.app.name": self.request.get("name") or self.id}
        kept["spark.driver.memory"] = f"{max(map(mib_of, asked))}m"
        master = f"local[{settings.get('spark.executor.cores', CORES)}]"
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", master]
        code = [uri for option, value in given if option == "--py-files" for uri in value.split(",")]
        files = [str(self.fetch(uri, self.folder)) for uri in code]
        if files:
            command += ["--py-files", ",".join(files)]
            kept["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(files)
        for name, value in kept.items():
            command += ["--conf", f"{name}={value}"]
        entry = self.fetch(spark["entryPoint"], self.folder)
        return [*command, str(entry), *spark.get("entryPointArguments", ())]

    def _settings(self) -> dict[str, str]:
        spark = self.request.get("jobDriver", {}).get("sparkSubmit", {})
        given = options_of(spark.get("sparkSubmitParameters") or "")
        return dict(value.split("=", 1) for option, value in given if option == "--conf")

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SPARK_", "PYSPARK_"))
        }
        from spark.runtime.session import local_environment

        ours = local_environment()
        # Our own code comes as on EMR, by --py-files.
        del ours["PYTHONPATH"]
        kept.pop("PYTHONPATH", None)
        return kept | ours | {"SPARK_LOCAL_IP": "127.0.0.1"} | dict(self.environment)

    def _tail(self) -> str:
        said = [log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip().splitlines() for log in self.logs]
        return " | ".join(line for lines in said for line in lines[-3:] if line.strip())[:500]


def jobs_left(folder: Path) -> Iterator[tuple[str, int]]:
    """Jobs, with their process groups, whose service was killed before it could end them."""
    for noted in sorted(folder.glob(f"*/{PID_FILE}")):
        said = noted.read_text()
        # Empty: killed while it was written.
        pid = int(said) if said.isdigit() else 0
        # Its code lies in its folder, so its command line names that; a reused process id does not.
        if str(noted.parent) in command_of(pid):
            yield noted.parent.name, pid
        noted.unlink(missing_ok=True)


def options_of(parameters: str) -> Iterator[tuple[str, str]]:
    """What `spark-submit` is told, as (option, value)."""
    words = iter(shlex.split(parameters))
    for word in words:
        option, equals, value = word.partition("=")
        if option == "--conf" and equals:
            yield option, value
        elif word.startswith("--"):
            yield word, next(words, "")
