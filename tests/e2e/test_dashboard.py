"""The deployed API through `s3queue dashboard --api`: signed here, judged by the emulator, answered by the function."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.session import Session

from infra.local.ministack.server import REGION
from s3queue.dashboard.signed_api import SignedApi
from s3queue.errors import AccessDenied
from support.api_calls import event
from support.deployed_stack import DeployedStack

KeysOf = Callable[..., tuple[str, str]]


@pytest.fixture
def outputs(bench: DeployedStack) -> dict[str, str]:
    (stack,) = bench.stack.client("cloudformation").describe_stacks(StackName="s3queue")["Stacks"]
    return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}


def output(outputs: dict[str, str], end: str) -> str:
    (found,) = [value for name, value in outputs.items() if name.startswith(f"Api{end}")]
    return found


@pytest.fixture
def api(bench: DeployedStack, outputs: dict[str, str]) -> Callable[[str, tuple[str, str]], SignedApi]:
    """The API behind this output, for whoever has these keys."""

    def signed(url: str, keys: tuple[str, str]) -> SignedApi:
        session = Session()
        session.set_credentials(*keys)
        if bench.stack.state.certificate:
            session.set_config_variable("ca_bundle", bench.stack.state.certificate)
        # Its name says where AWS would serve it; the emulator serves it below its own address.
        id = urlsplit(output(outputs, url)).netloc.partition(".")[0]
        return SignedApi(f"{bench.stack.state.endpoint}/_aws/lambda-url/{id}/", session=session, region=REGION)

    return signed


def ask(app: SignedApi, method: str, path: str, **options: Any) -> tuple[int, Any]:
    said = app.answer(event(method, path, **options))
    return said["statusCode"], json.loads(b64decode(said["body"]) if said["isBase64Encoded"] else said["body"])


def test_an_operator_sees_and_changes_the_deployed_queues(
    bench: DeployedStack, api: Any, outputs: dict[str, str], keys_of: KeysOf, unique: str
) -> None:
    app = api("Url", keys_of(output(outputs, "OperatorPolicy")))
    assert app.check() == "operator"
    status, said = ask(app, "GET", "/api/queues")
    assert (status, {queue["name"] for queue in said["queues"]} >= {"emails", "webhooks"}) == (200, True)
    body = {"to": f"{unique}@example.com", "subject": "Grüße & more"}
    status, said = ask(app, "POST", "/api/queues/emails/messages", body={"body": body, "dedup_id": f"{unique} +&="})
    assert status == 201
    path = said["path"]
    bench.outcome(bench.queue("emails"), path, sweeping=True)
    assert ask(app, "GET", "/api/queues/emails/message", query={"path": path})[1]["state"] == "completed"
    assert bench.mails_to(body["to"]) == 1


def test_a_reader_gets_in_by_the_readers_address_only(api: Any, outputs: dict[str, str], keys_of: KeysOf) -> None:
    reader = keys_of(output(outputs, "ReaderPolicy"))
    app = api("ReaderUrl", reader)
    assert app.check() == "reader"
    assert ask(app, "POST", "/api/queues/emails/pause")[1]["error"] == "ReadOnly"
    with pytest.raises(AccessDenied, match="OperatorPolicy"):
        api("Url", reader).check()
    operator = keys_of(output(outputs, "OperatorPolicy"))
    with pytest.raises(AccessDenied, match="ReaderPolicy"):
        api("ReaderUrl", operator).check()


def test_a_stranger_and_a_forger_stay_outside(api: Any, outputs: dict[str, str], keys_of: KeysOf) -> None:
    with pytest.raises(AccessDenied):
        api("Url", keys_of()).check()
    key, _ = keys_of(output(outputs, "OperatorPolicy"))
    with pytest.raises(AccessDenied):
        api("Url", (key, "guessed")).check()
