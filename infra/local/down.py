"""`make down`, `s3queue down`: ends what `up` left running, also when it was killed; safe to repeat."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from .emr.job_runs import jobs_left
from .home import COMMAND, Home, State
from .ministack.server import find
from .processes import command_of, end_group, environment_of, members

#: `up` cancels Spark jobs and ends MiniStack by itself when asked to.
STOP_WITHIN = 30.0


def down(home: Home, *, patience: float = STOP_WITHIN) -> list[str]:
    """End everything of this home; what was ended, as text.

    Raises:
        RuntimeError: something survived SIGKILL; it is named.
    """
    return list(_ended(home, patience))


def _ended(home: Home, patience: float) -> Iterator[str]:
    state = home.state()
    if state and _is_up(state.starter):
        _end(state.starter, patience)
        yield f"{COMMAND} up (pid {state.starter})"
    if server := find(home):
        server.stop()
        yield f"MiniStack (pid {server.state.pid})"
    elif state and _lambda_left(home, state):
        end_group(state.pid, grace=1)
        yield "Lambda processes that outlived MiniStack"
    for job, group in jobs_left(home.emr):
        end_group(group)
        yield f"Spark job {job}"
    home.forget()


def _is_up(pid: int) -> bool:
    # A process id is reused in time.
    return __package__ in command_of(pid).split()


def _end(pid: int, patience: float) -> None:
    """Ask, then insist. The process, not its group: that is the terminal's, with `make` and more in it."""
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not command_of(pid):
                return
            time.sleep(0.05)
    raise RuntimeError(f"still running: {pid} {command_of(pid)}")


def _lambda_left(home: Home, state: State) -> bool:
    return any(str(home.scratch) in environment_of(process.pid) for process in members(state.pid))
