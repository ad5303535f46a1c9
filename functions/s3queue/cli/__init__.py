"""The `s3queue` command. It needs the extra `cli` (typer and rich), which no other part of s3queue imports."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point of the command."""
    try:
        from .app import program
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "s3queue":
            raise
        print(f"s3queue: the command needs {missing.name}: pip install 's3queue[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    program()
