"""Secrets: read when a handler needs them, kept for a while, and never in the function's configuration."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from aws_lambda_powertools.utilities import parameters

import queues
from s3queue import InvalidRequest
from s3queue.worker import secrets as _secrets
from support.s3_servers import REGION


class Vault:
    """Both services on the test server, and the references that a function is told."""

    def __init__(self, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        # A session of its own: boto3's default one would keep what it finds here for other tests.
        session = boto3.Session(region_name=REGION)
        self.ssm: Any = session.client("ssm", endpoint_url=endpoint)
        self.manager: Any = session.client("secretsmanager", endpoint_url=endpoint)
        self.name = f"/s3queue/emails/{uuid.uuid4().hex}"

    def tell(self, **references: str) -> None:
        self._monkeypatch.setenv(_secrets.VARIABLE, json.dumps(references))


@pytest.fixture
def vault(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vault]:
    for name, value in {"AWS_ENDPOINT_URL": moto_endpoint, "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PASSWORD", raising=False)
    forget()
    yield Vault(moto_endpoint, monkeypatch)
    forget()


def forget() -> None:
    parameters.clear_caches()
    parameters.base.DEFAULT_PROVIDERS.clear()
    _secrets._absent.clear()


def test_a_parameter_is_read_decrypted_and_kept(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    vault.ssm.put_parameter(Name=vault.name, Value="hunter2", Type="SecureString")
    vault.tell(PASSWORD=f"ssm:{vault.name}")
    assert queues.secret("PASSWORD") == "hunter2"
    vault.ssm.put_parameter(Name=vault.name, Value="changed", Type="SecureString", Overwrite=True)
    assert queues.secret("PASSWORD") == "hunter2"
    parameters.clear_caches()
    assert queues.secret("PASSWORD") == "changed"


def test_a_secret_is_read_whole_or_by_key(vault: Vault) -> None:
    vault.manager.create_secret(Name=vault.name, SecretString=json.dumps({"user": "ada", "password": "hunter2"}))
    vault.tell(PASSWORD=f"secretsmanager:{vault.name}#password", ALL=f"secretsmanager:{vault.name}")
    assert queues.secret("PASSWORD") == "hunter2"
    assert json.loads(queues.secret("ALL"))["user"] == "ada"
    vault.tell(PASSWORD=f"secretsmanager:{vault.name}#token")
    with pytest.raises(InvalidRequest, match="no key 'token'"):
        queues.secret("PASSWORD")


@pytest.mark.parametrize("service", ["ssm", "secretsmanager"])
def test_a_secret_that_is_nowhere_is_empty_and_not_asked_for_again_at_once(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    vault.tell(PASSWORD=f"{service}:{vault.name}")
    assert queues.secret("PASSWORD") == ""
    vault.ssm.put_parameter(Name=vault.name, Value="hunter2", Type="SecureString")
    vault.manager.create_secret(Name=vault.name, SecretString="hunter2")
    assert queues.secret("PASSWORD") == ""
    now = _secrets._clock.monotonic()
    monkeypatch.setattr(_secrets._clock, "monotonic", lambda: now + _secrets.KEPT_SECONDS + 1)
    assert queues.secret("PASSWORD") == "hunter2"


def test_what_cannot_be_read_fails_the_attempt(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    vault.tell(PASSWORD=f"ssm:{vault.name}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(parameters.GetParameterError):
        queues.secret("PASSWORD")


def test_a_variable_of_its_name_counts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_secrets.VARIABLE, json.dumps({"PASSWORD": "ssm:/nowhere"}))
    monkeypatch.setenv("PASSWORD", "mine")
    assert queues.secret("PASSWORD") == "mine"
    monkeypatch.delenv("PASSWORD")
    monkeypatch.delenv(_secrets.VARIABLE)
    assert queues.secret("PASSWORD") == ""


def test_each_queue_names_its_secrets_and_where_they_lie() -> None:
    assert queues.secrets("emails", "shop") == {"EMAIL_SMTP_PASSWORD": "ssm:/shop/emails/EMAIL_SMTP_PASSWORD"}
    assert queues.secrets("webhooks", "shop") == {"WEBHOOK_SECRET": "ssm:/shop/webhooks/WEBHOOK_SECRET"}
    assert queues.secrets("thumbnails", "shop") == {}


def test_a_module_may_say_where_its_secret_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    import queues.emails

    monkeypatch.setattr(queues.emails, "SECRETS", {"EMAIL_SMTP_PASSWORD": "secretsmanager:smtp#password"})
    assert queues.secrets("emails", "shop") == {"EMAIL_SMTP_PASSWORD": "secretsmanager:smtp#password"}
    monkeypatch.setattr(queues.emails, "SECRETS", {"EMAIL_SMTP_PASSWORD": "vault:smtp"})
    with pytest.raises(InvalidRequest, match="vault:smtp"):
        queues.secrets("emails", "shop")
