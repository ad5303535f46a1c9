"""The zip: what was tested, what is used, and the same bytes every time."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import infra

_PIN = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


@pytest.fixture(scope="session")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small application, so that these tests do not depend on what is in functions/ today."""
    root = tmp_path_factory.mktemp("functions")
    for name, text in {
        "handlers/__init__.py": "",
        "handlers/worker.py": 'import boto3\n\ndef handle(event, context):\n    return boto3.client("s3")\n',
        f"handlers/__pycache__/worker.{sys.implementation.cache_tag}.pyc": "stale",
        "s3queue/PROTOCOL.md": "words",
        "s3queue/ruff.toml": "",
        "s3queue/dashboard/index.html": "<p>",
        "s3queue/dashboard/screenshots/overview.png": "a picture",
        ".ruff_cache/x": "",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture(scope="session")
def content(functions: Path) -> Path:
    """Built for this machine; the dependencies come from the cache under build/ if a synth was here before."""
    from infra.constructs.functions import Platform
    from infra.packaging.lambda_zip import prepare

    return prepare(Platform.of("local"), functions=functions)


def test_the_same_input_is_built_once(content: Path, functions: Path) -> None:
    from infra.constructs.functions import Platform
    from infra.packaging.lambda_zip import prepare

    before = content.stat().st_mtime_ns
    assert prepare(Platform.of("local"), functions=functions) == content
    assert content.stat().st_mtime_ns == before


def test_only_what_runs_is_shipped(content: Path) -> None:
    names = {path.relative_to(content).as_posix() for path in content.rglob("*")}
    assert {"handlers/worker.py", "s3queue/dashboard/index.html"} <= names
    assert not [name for name in names if re.search(r"ruff|PROTOCOL|screenshots|/RECORD$|^bin/|\.pyi$", name)]
    # Lambda cannot write bytecode, so it is there; not what happened to lie in the source tree, though.
    tag = sys.implementation.cache_tag
    bytecode = content / "handlers" / "__pycache__" / f"worker.{tag}.pyc"
    assert bytecode.read_bytes() != b"stale"
    assert (content / "pydantic" / "__pycache__" / f"main.{tag}.pyc").exists()


def test_a_changed_function_is_a_new_zip_and_a_changed_comment_in_the_specification_is_not(
    content: Path, functions: Path, tmp_path: Path
) -> None:
    from infra.constructs.functions import Platform
    from infra.packaging.lambda_zip import prepare

    copy = Path(shutil.copytree(functions, tmp_path / "functions"))
    (copy / "s3queue" / "PROTOCOL.md").write_text("other words")
    assert prepare(Platform.of("local"), functions=copy) == content
    (copy / "handlers" / "worker.py").write_text("changed = True\n")
    changed = prepare(Platform.of("local"), functions=copy)
    try:
        assert changed != content
    finally:
        shutil.rmtree(changed)


def test_the_zip_alone_is_enough_to_run_a_handler(content: Path) -> None:
    # -I -S: neither this environment's packages nor the current directory.
    program = (
        f"import sys; sys.path.insert(0, {str(content)!r})\n"
        "import aws_lambda_powertools.tracing, email_validator, PIL.Image, pydantic, boto3, handlers.worker\n"
        "import os; os.environ |= {'AWS_ACCESS_KEY_ID': 'x', 'AWS_SECRET_ACCESS_KEY': 'x', 'AWS_REGION': 'eu-west-1'}\n"
        "assert boto3.__file__.startswith(sys.path[0]), boto3.__file__\n"
        "assert handlers.worker.handle({}, None).meta.service_model.service_name == 's3'\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-B", "-c", program], check=True)


def test_only_the_api_models_in_use_are_shipped(content: Path) -> None:
    models = {path.name for path in (content / "botocore" / "data").iterdir() if path.is_dir()}
    assert {"s3", "sts"} <= models
    assert "ec2" not in models


def test_a_word_of_the_library_is_no_service_and_a_handlers_is(tmp_path: Path) -> None:
    """EC2's model alone has 1.7 MB; and a handler may pass the name of its service on."""
    from infra import FUNCTIONS
    from infra.packaging.lambda_zip import _models_in_use, _shipped

    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "mail.py").write_text('SERVICE = "ses"\n')
    (tmp_path / "s3queue").symlink_to(FUNCTIONS / "s3queue")
    sources = [tmp_path / path.relative_to(FUNCTIONS) for path in _shipped(FUNCTIONS)]
    sources = [path for path in sources if path.is_relative_to(tmp_path / "s3queue")]

    models = _models_in_use(tmp_path, [*sources, tmp_path / "handlers" / "mail.py"], tmp_path / "none")

    assert {"s3", "sts", "lambda", "emr-serverless", "ssm", "secretsmanager", "ses"} <= models
    assert not {"ec2", "connect", "health"} & models


@pytest.fixture
def small_lock(tmp_path: Path) -> Path:
    """Of what the functions' lock has, one package: the others would only take time."""
    from infra.packaging.lambda_zip import LOCK

    (block,) = re.findall(r"^urllib3==.*(?:\n +--hash.*)+", LOCK.read_text(), re.MULTILINE)
    lock = tmp_path / "lock.txt"
    lock.write_text(block + "\n")
    return lock


def test_somebodys_own_requirements_come_beside_the_locked_versions(
    functions: Path, small_lock: Path, tmp_path: Path
) -> None:
    from infra.constructs.functions import Platform
    from infra.packaging.lambda_zip import prepare

    wanted = tmp_path / "requirements.txt"
    wanted.write_text("requests\n")  # it needs urllib3, which is locked
    content = prepare(Platform.of("local"), functions=functions, lock=small_lock, build=tmp_path / "build", more=wanted)
    ((_, locked),) = _PIN.findall(small_lock.read_text())
    assert [path.name for path in content.glob("urllib3-*.dist-info")] == [f"urllib3-{locked}.dist-info"]
    program = f"import sys; sys.path.insert(0, {str(content)!r}); import requests, urllib3"
    subprocess.run([sys.executable, "-I", "-S", "-B", "-c", program], check=True)


def test_requirements_that_need_other_versions_are_refused(functions: Path, small_lock: Path, tmp_path: Path) -> None:
    from infra.constructs.functions import Platform
    from infra.packaging.lambda_zip import prepare

    wanted = tmp_path / "requirements.txt"
    wanted.write_text("urllib3<1.26\n")
    with pytest.raises(ValueError, match=r"requirements\.txt cannot be installed beside .*\n[\s\S]*urllib3"):
        prepare(Platform.of("local"), functions=functions, lock=small_lock, build=tmp_path / "build", more=wanted)


def test_requirements_that_are_not_there_are_named(functions: Path, tmp_path: Path) -> None:
    from infra.constructs.functions import Platform
    from infra.packaging.lambda_zip import prepare

    with pytest.raises(ValueError, match=r"there is no file '.*wanted\.txt' of requirements"):
        prepare(Platform.of("local"), functions=functions, more=tmp_path / "wanted.txt")


def test_the_zip_stays_small(content: Path, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "zip"), "zip", content)
    assert Path(archive).stat().st_size < 24_000_000


def test_every_function_gets_the_versions_that_the_tests_ran_with() -> None:
    from infra.packaging.lambda_zip import LOCK

    tested = dict(_PIN.findall((infra.ROOT / "requirements.txt").read_text()))
    shipped = dict(_PIN.findall(LOCK.read_text()))
    assert shipped
    assert shipped.items() <= tested.items()


def test_the_lock_names_no_place_and_pins_every_byte() -> None:
    from infra.packaging.lambda_zip import LOCK

    lock = LOCK.read_text()
    assert "://" not in lock
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=\S)", lock.strip()))


def test_what_is_built_is_not_committed() -> None:
    from infra.packaging.lambda_zip import BUILD

    ignored = subprocess.run(["git", "check-ignore", "--quiet", str(BUILD)], cwd=infra.ROOT, check=False)
    assert ignored.returncode in (0, 128)  # 128: not a git checkout
