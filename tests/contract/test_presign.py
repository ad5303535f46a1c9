"""A presigned URL really lets someone without credentials PUT one key, over plain HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request
from datetime import timedelta

import boto3
import pytest

from s3queue import connect
from s3queue.errors import AccessDenied
from support.s3_servers import fresh_bucket, s3_client


def put(url: str, body: bytes, **headers: str) -> int:
    # Without a type of its own, urllib calls every body a form.
    headers = {"Content-Type": "application/json"} | headers
    request = urllib.request.Request(url, data=body, method="PUT", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.promise("http")
def test_a_presigned_url_enqueues(store):
    url = store.presign_put("emails/messages/from a form.json", seconds=60)

    assert put(url, b'{"to":"a@example.com"}') == 200
    assert store.open("emails/messages/from a form.json").read() == b'{"to":"a@example.com"}'


@pytest.mark.promise("http")
def test_a_presigned_url_for_a_new_object_works_once(store):
    url = store.presign_put("emails/messages/once", seconds=60, if_absent=True)

    assert put(url, b"first", **{"If-None-Match": "*"}) == 200
    assert put(url, b"second", **{"If-None-Match": "*"}) == 412
    assert store.open("emails/messages/once").read() == b"first"


@pytest.mark.promise("http")
def test_a_presigned_condition_is_part_of_the_signature(store):
    url = store.presign_put("emails/messages/once", seconds=60, if_absent=True)

    assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in url
    assert "if-none-match" in url.lower()


@pytest.mark.promise("signatures")
@pytest.mark.promise("http")
def test_the_holder_of_a_presigned_url_cannot_leave_the_condition_out(store):
    url = store.presign_put("emails/messages/once", seconds=60, if_absent=True)

    assert put(url, b"no condition") == 403
    assert store.head("emails/messages/once") is None


@pytest.mark.promise("signatures")
@pytest.mark.promise("http")
def test_a_presigned_url_is_for_one_key(store):
    url = store.presign_put("emails/messages/mine", seconds=60)

    assert put(url.replace("messages/mine", "messages/other"), b"x") == 403


def test_a_presigned_url_names_the_key(store):
    assert "messages/mine" in store.presign_put("emails/messages/mine", seconds=60)


def test_a_presigned_url_enqueues_one_message_once_without_credentials(moto_endpoint):
    client = s3_client(moto_endpoint)
    queue = connect(f"s3://{fresh_bucket(client)}/orders", client=client)
    url, path = queue.presign(priority=5, expires=timedelta(minutes=5))
    assert path.startswith("messages/p005/")

    def send(body: bytes) -> int:
        request = urllib.request.Request(url, data=body, method="PUT", headers={"If-None-Match": "*"})
        request.add_unredirected_header("Content-Type", "")
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20).status

    assert send(b"from outside") == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        send(b"again")

    assert refused.value.code == 412
    (claim,) = queue.claim_next()
    assert (claim.path, claim.message.body) == (path, b"from outside")


@pytest.mark.promise("http")
def test_a_presigned_get_reads_one_object_without_credentials(store):
    store.put("emails/results/a page.html", b"<p>")
    url = store.presign_get("emails/results/a page.html", seconds=60)
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.read() == b"<p>"


@pytest.mark.promise("signatures")
@pytest.mark.promise("http")
def test_a_presigned_get_is_for_one_key_and_for_reading(store):
    store.put("emails/results/mine", b"x")
    store.put("emails/results/other", b"y")
    url = store.presign_get("emails/results/mine", seconds=60)
    assert put(url, b"changed") == 403
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url.replace("results/mine", "results/other"), timeout=10)
    with refused.value as error:
        assert error.code == 403


def test_without_credentials_there_is_nothing_to_sign_with(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it remembers those of an earlier test
    queue = connect("s3://bucket/emails", region="eu-central-1")

    with pytest.raises(AccessDenied, match="bucket/emails/messages/"):
        queue.presign()
