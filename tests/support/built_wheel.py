"""The built wheel, unpacked as an installer does it, and programs that see it instead of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]


class BuiltWheel:
    """s3queue as others get it. What it depends on comes from this environment: installing that takes minutes."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        (self.file,) = folder.glob("*.whl")
        self.site = folder / "site"
        with zipfile.ZipFile(self.file) as archive:
            archive.extractall(self.site)
            self.names = archive.namelist()

    def run(self, *command: str, folder: Path, timeout: float = 280, **more: str) -> subprocess.CompletedProcess[str]:
        """Run Python in a folder, where `import s3queue` is the wheel's, and nothing of the repository is found."""
        return subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env=self._environment() | more,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )

    def start(self, *command: str, folder: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
        """The same, not waited for."""
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "S3QUEUE_"))}
        # First on the path, before the .pth file of the editable installation.
        return kept | {"PYTHONPATH": f"{self.site}", "AWS_EC2_METADATA_DISABLED": "true"}

    def share_downloads(self, folder: Path) -> None:
        """What synths have built before is theirs, too: pip takes a minute for it."""
        (ROOT / "build").mkdir(exist_ok=True)
        (folder / "build").symlink_to(ROOT / "build")
