"""A command that ends with whoever started it, however that one ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


@contextlib.contextmanager
def process_group(
    command: Sequence[str],
    *,
    folder: str | Path,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    leftovers: Sequence[str] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own; kill the group and remove `leftovers` at the end.

    That also happens when this process is killed with -9: a shell waits for the end of a pipe that only we hold open.
    """
    # Started first, so that there is no time in which the command runs and nobody would end it.
    reaper = subprocess.Popen(
        ["sh", "-c", 'read group || exit; read _; kill -KILL "-$group"; rm -rf -- "$@"', "sh", *leftovers],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,  # or Ctrl-C would end it before it could do its work
    )
    assert reaper.stdin
    process = None
    try:
        with log.open("wb") if log else contextlib.nullcontext() as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        reaper.stdin.write(b"%d\n" % process.pid)
        yield process
    finally:
        if process:
            # Not SIGTERM first: the data is thrown away, and SeaweedFS takes more than five seconds to say goodbye.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # Before its pipe closes, so that it cannot kill a later group that was given the same number.
        reaper.kill()
        reaper.communicate()
        for leftover in map(Path, leftovers):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
