"""One copy of a function's code for all of its processes. Runs inside MiniStack's environment, as gateway.py does."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
import types
import zipfile
from pathlib import Path
from typing import Any

from ministack.core import lambda_runtime


def unpack_once() -> None:
    """Let all processes with the same code share it: unpacking some thousand files for each keeps MiniStack, which is
    one process itself, from answering anyone for seconds, and clearing them away takes as long."""
    shared = Path(tempfile.mkdtemp(prefix="code-"))
    mutex = threading.Lock()

    class Archive(zipfile.ZipFile):
        def extractall(self, path: Any = None, *arguments: Any, **options: Any) -> None:
            target = Path(path)
            if target.name != "code" or self.filename is None:
                super().extractall(path, *arguments, **options)
                return
            unpacked = shared / hashlib.sha256(Path(self.filename).read_bytes()).hexdigest()
            with mutex:
                if not unpacked.exists():
                    super().extractall(f"{unpacked}.unfinished", *arguments, **options)
                    shutil.move(f"{unpacked}.unfinished", unpacked)
            target.rmdir()
            target.symlink_to(unpacked, target_is_directory=True)

    lambda_runtime.zipfile = types.SimpleNamespace(**{**vars(zipfile), "ZipFile": Archive})
