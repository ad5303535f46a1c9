"""What `s3queue init` writes: a small project with one queue, its test, its CDK app and its container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from s3queue import __version__
from s3queue.errors import InvalidRequest

#: It becomes the stack's name, and a part of every function's.
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
#: The CDK CLI that was tried with the constructs. npm's latest does not fit current libraries.
CDK_CLI = "2.1147.0"

FILES: Mapping[str, str] = {
    "pyproject.toml": """\
[project]
name = "@name@"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["s3queue[all]>=@version@"]

[dependency-groups]
dev = ["pytest"]

[tool.pytest.ini_options]
testpaths = ["tests"]
""",
    "cdk.json": """\
{
  "app": "python app.py",
  "context": {
    "@aws-cdk/core:checkSecretUsage": true,
    "@aws-cdk/aws-iam:minimizePolicies": true
  }
}
""",
    "app.py": """\
from s3queue_cdk import S3Queues  # isort: skip (first: it finds the Node.js of this environment)
from aws_cdk import App, Validations
from cdk_nag import AwsSolutionsChecks

app = App()
S3Queues(app, "@name@")
Validations.of(app).add_plugins(AwsSolutionsChecks(app))
app.synth()
""",
    "queues/__init__.py": "",
    "queues/orders.py": '''\
"""orders: confirms each order once."""

import logging
from dataclasses import dataclass

from s3queue import Context, Reject, define

queue = define("orders", visibility_timeout=60, max_attempts=3, concurrency=2)
logger = logging.getLogger(__name__)


@dataclass
class Order:
    id: int
    email: str


@queue.handler
def confirm(order: Order, context: Context) -> dict[str, int]:
    if "@" not in order.email:
        raise Reject(f"order {order.id} has no address")  # dead at once; any other error is retried with backoff
    logger.info("order %d confirmed, attempt %d", order.id, context.attempt)
    return {"confirmed": order.id}  # completed, with this result in its record
''',
    "conftest.py": 'pytest_plugins = ["s3queue.testing.plugin"]\n',
    "tests/test_orders.py": """\
from queues.orders import queue
from s3queue.testing import MemoryBucket, run


def test_an_order_is_confirmed():
    done = run(queue, {"id": 17, "email": "ada@example.com"})

    assert (done.outcome, done.result) == ("completed", {"confirmed": 17})
    assert done.logs == ["order 17 confirmed, attempt 1"]


def test_an_order_without_an_address_is_dead_at_once():
    assert run(queue, {"id": 17, "email": "nobody"}).outcome == "dead"


def test_a_delayed_order_is_confirmed_when_it_is_due():
    bucket = MemoryBucket()
    orders = bucket.serve(queue)
    path = orders.enqueue({"id": 17, "email": "ada@example.com"}, delay=3600)
    assert orders.status(path).state == "delayed"

    bucket.clock.advance(3600)

    assert orders.status(path).state == "completed"
""",
    "Dockerfile": """\
# A pull worker of every queue, wherever containers run: docker run -e S3QUEUE_URL=s3://my-bucket @name@
FROM python:3.13-slim
RUN pip install --no-cache-dir "s3queue[cli,pydantic,powertools,schedules]>=@version@" && useradd worker
WORKDIR /app
COPY queues queues
USER worker
CMD ["s3queue", "work", "--all"]
""",
    ".gitignore": "__pycache__/\n.pytest_cache/\n.venv/\n.local/\nbuild/\ncdk.out/\n",
    "README.md": """\
# @name@

A queue is a module in `queues`. The next commands:

```console
$ pip install 's3queue[all]>=@version@' pytest
$ pytest
$ s3queue up                        # the same stack on this machine, without an account; s3queue down ends it
$ npx aws-cdk@@cdk@ deploy --all    # on your AWS account; once before: npx aws-cdk@@cdk@ bootstrap
$ s3queue send orders '{"id": 17, "email": "ada@example.com"}' --url s3://BUCKET    # the stack's output `Bucket`
```

A new account has 10 concurrent executions in all: deploy with `-c reserved_concurrency=false`. Without Lambda,
`s3queue work --all --url s3://BUCKET` runs the queues here, and the `Dockerfile` in a container.
""",
}


def check_name(name: str) -> str:
    """The name itself.

    Raises:
        InvalidRequest: it cannot be a stack's.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name[:80]!r} cannot be the name of a project: use 1 to 40 lower-case letters, digits and '-', and start "
            "with a letter"
        )
    return name


def name_of(folder: Path) -> str:
    """A name for the project in a folder that exists."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-0123456789")[:40].strip("-")
    return name or "queues"


def write_project(folder: Path, name: str) -> tuple[list[str], list[str]]:
    """Write what is not there yet; returns which files were written, and which were there.

    Raises:
        InvalidRequest: the folder, or something in it, cannot be written.
    """
    written: list[str] = []
    kept: list[str] = []
    values = {"name": check_name(name), "version": __version__, "cdk": CDK_CLI}
    for path, template in FILES.items():
        text = re.sub(r"@(name|version|cdk)@", lambda found: values[found[1]], template)
        target = folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                # Exclusive, so that nothing is overwritten: not even what came a moment ago, or a link's target.
                with target.open("x", encoding="utf-8") as file:
                    file.write(text)
                written.append(path)
                continue
        except OSError as error:
            raise InvalidRequest(
                f"{target} cannot be written: {error.strerror or error}; written so far: {written or 'nothing'}"
            ) from None
        kept.append(path)
    return written, kept
