"""Planted bugs: small mutations of the real code, each of which the simulation, the crash matrix or, where real threads
matter, a test must catch.

`bugs/` has them. Each is hunted in a process of its own, which reads the mutated source in the place of the real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any

SOURCE = Path(__file__).parents[2] / "functions"
TESTS = Path(__file__).parents[1]
#: What caught each bug at the last full hunt: it is tried first, and if it does not catch the bug any more, all is.
CAUGHT = Path(__file__).with_name("caught.json")
GROUPS = (
    *("leases", "outcomes", "sends", "sweeps", "calls", "strangers", "operators", "flow", "schedules", "kept"),
    *("limits", "threads", "readers", "reminders", "released", "flows", "partitions", "group_sends"),
    *("spark_partitions", "partition_uses", "partition_readers", "spark_feed", "spark_launches", "edits"),
    "frameworks",
)


@dataclass(frozen=True, slots=True)
class Mutation:
    """`old` occurs exactly once in `module`, a file of the library, `functions/` or `spark/`, and becomes `new`."""

    name: str
    module: str
    old: str
    new: str
    #: (module, old, new) of what else has to go, where two precautions stand behind each other.
    more: tuple[tuple[str, str, str], ...] = ()
    #: The test that has to catch it, if the simulation cannot: it has no real threads.
    test: str = ""

    def sources(self) -> dict[str, tuple[Path, str]]:
        """Module → its file and its mutated source.

        Raises:
            ValueError: the source no longer has this text: correct the mutation.
        """
        found: dict[str, tuple[Path, str]] = {}
        for module, old, new in ((self.module, self.old, self.new), *self.more):
            places = (SOURCE / "s3queue", SOURCE, SOURCE.parent)
            path = next(place / module for place in places if (place / module).exists())
            root = SOURCE if SOURCE in path.parents else SOURCE.parent
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            source = found[name][1] if name in found else path.read_text()
            if source.count(old) != 1:
                raise ValueError(f"{self.name!r}: its text occurs {source.count(old)} times in {module}, not once")
            found[name] = path, source.replace(old, new)
        return found


@dataclass(frozen=True, slots=True)
class Catch:
    """Who caught a mutation, as which broken promise, and what it took. `by` is empty if nobody did."""

    mutation: str
    by: str
    what: str
    schedules: int
    seconds: float


def planted() -> tuple[Mutation, ...]:
    """All of them, in the order of their groups."""
    return tuple(bug for group in GROUPS for bug in import_module(f"simulation.bugs.{group}").BUGS)


class _Loader(SourceFileLoader):
    """Loads a mutated source; there is no cache of it."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class Planter:
    """Finds the modules of one mutation; put it in front of `sys.meta_path` before any of them is imported."""

    def __init__(self, mutation: Mutation) -> None:
        self._sources = mutation.sources()

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if name not in self._sources:
            return None
        file, source = self._sources[name]
        return spec_from_file_location(name, file, loader=_Loader(name, str(file), source))


def hunt(mutation: Mutation, seconds: float = 60.0, *, remembers: bool = False) -> Catch:
    """Run the crash matrix and the schedules over the planted bug until something catches it.

    With `remembers`, what caught it last is tried first.
    """
    mutation.sources()
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}"}
    first = json.loads(CAUGHT.read_text()).get(mutation.name, "") if remembers and CAUGHT.exists() else ""
    command = [sys.executable, "-m", "simulation.hunt", mutation.name, str(seconds), first]
    done = subprocess.run(command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutation.name!r}: the hunt itself failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    return Catch(mutation.name, found["by"], found["what"], found["schedules"], found["seconds"])
