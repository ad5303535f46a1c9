"""Where the files of a local stack live, and what is remembered about the one that runs."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .. import IS_REPOSITORY, PROJECT

LOCAL = PROJECT / ".local"
#: What starts and ends a stack here: `make up`, or in a project of one's own `s3queue up`.
COMMAND = "make" if IS_REPOSITORY else "s3queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The running stack, as `stack.json` describes it to a second `up` and to other programs."""

    pid: int
    port: int
    endpoint: str
    #: The process that started MiniStack and ends it: `up`.
    starter: int = 0
    #: Whether IAM is enforced; then the endpoint speaks TLS and this certificate proves it.
    auth: bool = False
    certificate: str = ""
    #: The account's root user, whom no policy binds; known to nobody who cannot read this file. New at every start,
    #: but for `make up`, whose addresses go on to work.
    key: str = ""
    secret: str = ""
    #: Where the stand-in for EMR Serverless listens; whoever started MiniStack runs it, too. Who knows the token may
    #: start jobs: it is part of the address that functions are told.
    emr_port: int = 0
    emr_token: str = ""
    #: The hash of what was deployed; empty until the first deployment succeeded.
    deployed: str = ""
    #: Whether its data outlive it: `make up`.
    keeps: bool = False

    @property
    def emr_endpoint(self) -> str:
        return f"http://127.0.0.1:{self.emr_port}/{self.emr_token}"


@dataclass(frozen=True, slots=True)
class Home:
    """The directory of one local stack. Tests use their own, so that they never meet the one from `make up`."""

    path: Path = LOCAL

    @property
    def state_file(self) -> Path:
        return self.path / "stack.json"

    @property
    def server_log(self) -> Path:
        return self.path / "ministack.log"

    @property
    def cdk_log(self) -> Path:
        return self.path / "cdk.log"

    @property
    def cdk_out(self) -> Path:
        return self.path / "cdk.out"

    @property
    def emr(self) -> Path:
        """A folder for each Spark job: its code, what it logged in `stdout`, and Spark in `stderr`."""
        return self.path / "emr"

    @property
    def scratch(self) -> Path:
        """MiniStack's TMPDIR: the unpacked code of every Lambda process. Emptied when the stack stops."""
        return self.path / "tmp"

    @property
    def kept(self) -> Path:
        """What `make up` finds again: the bucket's objects, MiniStack's state, and port and keys in `stack.json`."""
        return self.path / "kept"

    def state(self) -> State | None:
        return _read(self.state_file)

    def kept_state(self) -> State | None:
        """The stack of the last `make up`, if it is to be found again."""
        return _read(self.kept / "stack.json")

    def keep(self, state: State, **changes: Any) -> None:
        """Remember port, keys and what was deployed, for the next `make up`."""
        self.kept.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(self.kept / "stack.json", replace(state, **changes))

    def start_fresh(self) -> None:
        """Forget what was kept."""
        shutil.rmtree(self.kept, ignore_errors=True)

    def remember(self, state: State, **changes: Any) -> State:
        state = replace(state, **changes)
        _write(self.state_file, state)
        return state

    def forget(self) -> None:
        self.state_file.unlink(missing_ok=True)

    @contextmanager
    def locked(self, name: str = "stack") -> Iterator[None]:
        """One at a time: two terminals may say `make up` in the same second."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _read(file: Path) -> State | None:
    try:
        return State(**json.loads(file.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _write(file: Path, state: State) -> None:
    unfinished = file.with_suffix(".unfinished")
    # It holds secrets: nobody else on this machine may read it, not even for a moment.
    unfinished.unlink(missing_ok=True)
    unfinished.touch(mode=0o600)
    unfinished.write_text(json.dumps(asdict(state), indent=2) + "\n")
    unfinished.replace(file)
