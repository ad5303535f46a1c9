"""Generates openapi.json: `python -m s3queue.dashboard`."""

from __future__ import annotations

import json
from pathlib import Path

from s3queue.stores.memory import MemoryStore

from .api import build, document

if __name__ == "__main__":
    text = json.dumps(document(build(MemoryStore())), indent=1, ensure_ascii=False)
    (Path(__file__).parent / "openapi.json").write_text(text + "\n")
