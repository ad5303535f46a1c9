"""What is installed is what was locked: each package by its hash, from the very first, and no index written down."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from infra import ROOT

LOCKS = sorted(ROOT.glob("requirements*.txt"))
#: `name==version`, and what follows it up to the next one.
PINNED = re.compile(
    r"^(?P<name>[A-Za-z0-9_.-]+)(?:\[[\w,-]+\])?==(?P<version>[^\s;\\]+)(?P<rest>(?:.*\\\n)*.*)$", re.MULTILINE
)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_package_has_its_hashes_and_no_lock_names_an_index(lock: Path) -> None:
    text = lock.read_text()
    found = list(PINNED.finditer(text))
    assert found
    assert [one["name"] for one in found if "--hash=sha256:" not in one["rest"]] == []
    assert not re.search(r"://|--(?:extra-)?index-url|--find-links|--trusted-host", text)
    starts = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(starts) == len(found), "every line that begins a requirement pins it"


def test_no_command_installs_anything_without_its_hash() -> None:
    """The first one did: uv came by its version alone, and then installed all the rest."""
    commands = re.sub(r"\\\n\s*", " ", (ROOT / "Makefile").read_text())
    installs = [line.strip() for line in commands.splitlines() if re.search(r"pip (?:install|sync)\b", line)]
    assert installs
    for line in installs:
        # Our own code is what is being built here; it has no hash, and brings nothing along.
        own = "--no-deps" in line and line.rstrip().endswith("--editable .")
        assert own or line.count("--require-hashes") == len(re.findall(r"pip (?:install|sync)\b", line)), line


def test_every_action_of_a_workflow_is_named_by_its_digest() -> None:
    """A tag can be moved by whoever owns the action, or took it over."""
    workflows = [*(ROOT / ".github" / "workflows").glob("*.y*ml")]
    used = [action for file in workflows for action in re.findall(r"uses:\s*(\S+)", file.read_text())]
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []


def test_uv_is_the_version_that_the_makefile_locks() -> None:
    (version,) = re.findall(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (locked,) = PINNED.finditer((ROOT / "requirements-uv.txt").read_text())
    assert (locked["name"], locked["version"]) == ("uv", version)
    # Linux and macOS on both machines, musl and Windows: more than this machine's own.
    assert locked["rest"].count("--hash=sha256:") >= 8


def test_another_uv_of_the_same_version_is_refused(tmp_path: Path) -> None:
    """An index that was taken over, or a proxy that lies: right name, right version, other bytes."""
    (version,) = re.findall(r"^uv==(\S+)", (ROOT / "requirements-uv.txt").read_text())
    wheel = tmp_path / f"uv-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("uv/__init__.py", "")
        archive.writestr(f"uv-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {version}\n")
        archive.writestr(
            f"uv-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"uv-{version}.dist-info/RECORD", "")
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-index"]
    pip += [f"--find-links={tmp_path}", f"--target={tmp_path / 'installed'}", "--isolated"]
    refused = subprocess.run(
        [*pip, "--require-hashes", "-r", str(ROOT / "requirements-uv.txt")], capture_output=True, text=True
    )
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    # As it was done before.
    assert subprocess.run([*pip, f"uv=={version}"], capture_output=True).returncode == 0
