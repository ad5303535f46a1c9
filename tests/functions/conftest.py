"""An installation on moto, and the AWS APIs that the functions call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.installation import Installation, forget
from support.outside_services import AwsEndpoint


@pytest.fixture
def installation(
    moto_endpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Installation]:
    """Serves `emails`, whose mail goes into a folder, until a test configures it otherwise."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    monkeypatch.setenv("EMAIL_OUTBOX", str(tmp_path / "outbox"))
    found = Installation(moto_endpoint, monkeypatch, capsys)
    found.configure(queue="emails")
    yield found
    forget()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsEndpoint]:
    """Lambda's and EventBridge's APIs, as far as the functions call them."""
    with AwsEndpoint.serve() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", endpoint.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_EVENTBRIDGE", endpoint.url)
        yield endpoint
