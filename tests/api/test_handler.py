"""The deployed API: the same resolver, for the deployed queues only."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from handlers import api
from s3queue.deployment import Deployment
from s3queue.stores.s3 import S3Store
from support.api_calls import event
from support.function_loggers import forget_loggers
from support.s3_servers import fresh_bucket, s3_client


@pytest.fixture
def bucket(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    bucket = fresh_bucket(s3_client(moto_endpoint))
    deployment = Deployment(bucket=bucket, workers={"emails": "s3queue-emails"})
    for name, text in deployment.to_env().items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    api.api.cache_clear()
    yield bucket
    api.api.cache_clear()
    forget_loggers()


def test_it_serves_the_deployed_queues(bucket: str, moto_endpoint: str) -> None:
    S3Store(bucket, client=s3_client(moto_endpoint)).put("stranger/messages/x", b"x")
    sent = api.handle(event("POST", "/api/queues/emails/messages", body={"body": {"to": "ada@example.com"}}), None)
    assert sent["statusCode"] == 201
    answer = api.handle(event("GET", "/api/queues"), None)
    (queue,) = json.loads(answer["body"])["queues"]
    assert (queue["name"], queue["stats"]["pending"]) == ("emails", 1)


def test_a_reader_is_served_without_changes_and_payloads(bucket: str) -> None:
    sent = api.handle(event("POST", "/api/queues/emails/messages", body={"body": "secret words"}), None)
    path = json.loads(sent["body"])["path"]
    refused = [
        api.read(event("POST", "/api/queues/emails/messages", body={"body": "x"}), None),
        api.read(event("POST", "/api/queues/emails/pause"), None),
        api.read(event("GET", "/api/queues/emails/message", query={"path": path, "body": 1}), None),
    ]
    assert [answer["statusCode"] for answer in refused] == [403, 403, 403]
    life = api.read(event("GET", "/api/queues/emails/message", query={"path": path}), None)
    assert (life["statusCode"], json.loads(life["body"])["state"]) == (200, "pending")
    assert "secret words" not in life["body"]
    whole = api.handle(event("GET", "/api/queues/emails/message", query={"path": path, "body": 1}), None)
    assert "secret words" in whole["body"]


def test_it_serves_the_page(bucket: str) -> None:
    answer = api.handle(event("GET", "/"), None)
    assert (answer["statusCode"], answer["headers"]["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<title>s3queue</title>" in answer["body"]
