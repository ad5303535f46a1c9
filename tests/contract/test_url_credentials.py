"""Credentials in a queue's URL: they are what signs the requests, and nothing repeats them."""

from __future__ import annotations

import logging

import pytest

from s3queue import connect
from s3queue.errors import AccessDenied
from support.s3_servers import ACCESS_KEY, SECRET_KEY, fresh_bucket, s3_client


@pytest.mark.parametrize("kind", ["boto3", "direct"])
def test_the_url_s_credentials_sign_and_wrong_ones_are_refused(seaweedfs_endpoint, monkeypatch, caplog, kind):
    caplog.set_level(logging.DEBUG)
    bucket = fresh_bucket(s3_client(seaweedfs_endpoint))
    address = seaweedfs_endpoint.removeprefix("http://")
    # What the environment says does not count.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    queue = connect(f"s3+http://{ACCESS_KEY}:{SECRET_KEY}@{address}/{bucket}/orders", store=kind, region="us-east-1")
    path = queue.enqueue({"n": 1})
    assert queue.claim(path).message.json() == {"n": 1}
    assert SECRET_KEY not in repr(queue)

    wrong = connect(f"s3+http://{ACCESS_KEY}:s%3Acret@{address}/{bucket}/orders", store=kind, region="us-east-1")
    with pytest.raises(AccessDenied) as refused:
        wrong.enqueue({"n": 2})
    assert "s:cret" not in str(refused.value) + caplog.text
    assert "s%3Acret" not in str(refused.value) + caplog.text
