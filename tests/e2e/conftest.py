"""The deployed stack, once for all of these tests, with IAM enforced: a missing permission is really missed."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

import queues
from infra.local.application import for_this_machine
from infra.local.home import Home
from infra.local.stack import local_stack
from infra.local.steps import Steps
from s3queue.queue import Queue
from support.deployed_stack import DeployedStack
from support.webhook_receiver import WebhookReceiver

HERE = Path(__file__).parent


# First, because pytest-xdist reads the marks in this same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            # One process for all of them: every other one would deploy a stack of its own.
            item.add_marker(pytest.mark.xdist_group("e2e"))
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedStack]:
    home = Home(tmp_path_factory.mktemp("stack"))
    variables = for_this_machine(home)
    # Not from the function's configuration, as `make up` has it: the worker reads it where it would on AWS.
    secret = variables.pop("WEBHOOK_SECRET")
    # Quiet while all is well; a failure brings the CLI's last words with it.
    steps = Steps(Console(file=io.StringIO()))
    # As `-c` takes them: `S3QUEUE_E2E_OPTIONS="kms_key=arn:…" make test T=tests/e2e` runs all of it on that variant.
    options = os.environ.get("S3QUEUE_E2E_OPTIONS", "").split()
    with local_stack(home, auth=True, context=options, variables=variables, steps=steps) as stack:
        made = DeployedStack(stack, Path(variables["EMAIL_OUTBOX"]))
        parameter = queues.secrets("webhooks", "s3queue")["WEBHOOK_SECRET"].removeprefix("ssm:")
        stack.client("ssm").put_parameter(Name=parameter, Value=secret, Type="SecureString")
        # Not thumbnails: what runs there within a minute was woken by its event and by nothing else.
        made.queue("emails").configure(rescue_after=5, retry_jitter=False)
        made.queue("webhooks").configure(rescue_after=5, visibility_timeout=10, handler_timeout=9)
        yield made


@pytest.fixture
def emails(bench: DeployedStack) -> Queue:
    return bench.queue("emails")


@pytest.fixture
def webhooks(bench: DeployedStack) -> Queue:
    return bench.queue("webhooks")


@pytest.fixture
def thumbnails(bench: DeployedStack) -> Queue:
    return bench.queue("thumbnails")


@pytest.fixture
def endpoint() -> Iterator[WebhookReceiver]:
    with WebhookReceiver().listening() as listening:
        yield listening


@pytest.fixture
def unique() -> str:
    """For names and addresses: the tests share their queues."""
    return uuid.uuid4().hex[:8]


@pytest.fixture
def keys_of(bench: DeployedStack, unique: str) -> Iterator[Callable[..., tuple[str, str]]]:
    """Access key and secret of a new user with these policies."""
    iam = bench.stack.client("iam")
    users: list[tuple[str, str, tuple[str, ...]]] = []

    def keys(*policies: str) -> tuple[str, str]:
        name = f"user-{unique}-{len(users)}"
        iam.create_user(UserName=name)
        for policy in policies:
            iam.attach_user_policy(UserName=name, PolicyArn=policy)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        users.append((name, key["AccessKeyId"], policies))
        return key["AccessKeyId"], key["SecretAccessKey"]

    yield keys
    for name, key, policies in users:
        iam.delete_access_key(UserName=name, AccessKeyId=key)
        for policy in policies:
            iam.detach_user_policy(UserName=name, PolicyArn=policy)
        iam.delete_user(UserName=name)
