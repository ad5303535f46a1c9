"""Processes of this machine: who belongs to a group, and how to be sure that none is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    group: int
    #: Ended, and waiting for its parent to notice: it holds nothing any more.
    zombie: bool
    command: str


def running() -> list[Process]:
    """Every process that this user can see."""
    return list(_from_proc() if (PROC / "self" / "stat").exists() else _from_ps())


def members(group: int) -> list[Process]:
    """The living processes of a group."""
    return [process for process in running() if process.group == group and not process.zombie]


def command_of(pid: int) -> str:
    """The command line; empty if there is no such process."""
    return next((process.command for process in running() if process.pid == pid and not process.zombie), "")


def environment_of(pid: int) -> str:
    """What a process was started with, as text to search in; empty if there is no such process."""
    try:
        if (PROC / "self" / "environ").exists():
            return (PROC / str(pid) / "environ").read_bytes().replace(b"\0", b"\n").decode(errors="replace")
    except OSError:
        return ""
    return subprocess.run(["ps", "-Eww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True).stdout


def end_group(group: int, *, grace: float = 3.0) -> None:
    """Ask, then insist, then make sure.

    Raises:
        RuntimeError: something survived SIGKILL; it is named.
    """
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            # Ours to collect, or it stays a zombie for as long as we live.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-group, os.WNOHANG)
            if not members(group):
                return
            time.sleep(0.05)
    raise RuntimeError(f"still running: {[(left.pid, left.command) for left in members(group)]}")


def _from_proc() -> Iterator[Process]:
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        # It may end while we look at it.
        with contextlib.suppress(OSError):
            # The name in parentheses may itself hold spaces and parentheses.
            state, parent, group, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            yield Process(int(entry.name), int(parent), int(group), state in "ZX", command)


def _from_ps() -> Iterator[Process]:
    listing = subprocess.run(
        ["ps", "-axww", "-o", "pid=,ppid=,pgid=,stat=,command="], capture_output=True, text=True, check=True
    )
    for line in listing.stdout.splitlines():
        pid, parent, group, state, *command = line.split(None, 4)
        yield Process(int(pid), int(parent), int(group), state.startswith("Z"), "".join(command))
