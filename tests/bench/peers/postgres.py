"""A PostgreSQL server for the benchmark alone: its own folder, a Unix socket, PGMQ in it.

PGMQ is one SQL script; it comes with the Python package `pgmq`. PostgreSQL itself must be on the machine.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from servers import process_group

#: Where Debian and its kin put each version.
HOMES = Path("/usr/lib/postgresql")
USER = "bench"
_STARTS_WITHIN_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server that runs."""

    #: For psycopg.connect.
    address: str
    version: str
    pgmq: str


def programs() -> Path | None:
    """The folder of the newest server that is installed; None: there is none."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    homes = (home for home in HOMES.glob("*/bin") if (home / "initdb").exists())
    return max(homes, key=lambda home: float(home.parent.name), default=None)


def pgmq_script() -> tuple[str, str] | None:
    """PGMQ's SQL and its version; None if the package that carries it is not installed."""
    try:
        carried = {str(file): file for file in files("pgmq") or ()}
        return carried["pgmq/sql/pgmq.sql"].read_text(), carried["pgmq/sql/VERSION"].read_text().strip()
    except (PackageNotFoundError, KeyError):
        return None


@contextmanager
def postgres(home: Path, script: str, pgmq: str) -> Iterator[Postgres]:
    """Start a server as it comes: every commit is on the disk before it is confirmed, as a PUT is."""
    import psycopg

    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        data = Path(folder) / "data"
        as_user = _as_somebody(folder)
        initdb = [*as_user, home / "initdb", "-D", data, "-U", USER, "--auth=trust", "--encoding=UTF8", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder)
        command = [*as_user, str(home / "postgres"), "-D", str(data), "-k", folder, "-c", "listen_addresses="]
        log = Path(folder) / "postgres.log"
        with process_group(command, folder=folder, log=log, leftovers=[folder]) as process:
            try:
                address = f"host={folder} user={USER} dbname=postgres"
                version = _wait(address, process, log)
                with psycopg.connect(address, autocommit=True) as connection:
                    connection.execute(script)
                yield Postgres(address, version, pgmq)
            finally:
                # Killed outright, it would leave a segment of shared memory behind.
                process.send_signal(signal.SIGQUIT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)


def _as_somebody(folder: str) -> list[str]:
    """PostgreSQL refuses to run as root: run it as its own user, or as nobody."""
    if os.geteuid() != 0:
        return []
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = known.get("postgres") or known["nobody"]
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> str:
    import psycopg

    give_up_at = time.monotonic() + _STARTS_WITHIN_SECONDS
    while process.poll() is None and time.monotonic() < give_up_at:
        with suppress(psycopg.OperationalError), psycopg.connect(address) as connection:
            return str(connection.execute("SHOW server_version").fetchone()[0])
        time.sleep(0.1)
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text(errors='replace')[-2000:]}")
