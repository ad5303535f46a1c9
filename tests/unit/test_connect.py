"""connect: a queue is opened by its URL, and a URL that names none is refused."""

from __future__ import annotations

import pytest

from s3queue import (
    InvalidName,
    InvalidRequest,
    QueueSettings,
    connect,
)


def test_connect_opens_a_queue_by_its_url():
    queue = connect("memory://try-it/emails", settings=QueueSettings.of(max_attempts=5))
    path = queue.enqueue({"to": "a@example.com"})

    assert connect("memory://try-it/emails").status(path).state == "pending"
    assert connect("memory://alone").name == "alone"
    assert queue.settings.max_attempts == 5


@pytest.mark.parametrize(
    "url", ["s3://", "s3://bucket", "s3://bucket/", "http://bucket/queue", "bucket/queue", "", None, b"s3://b/q"]
)
def test_a_url_that_names_no_queue_is_refused(url):
    with pytest.raises(InvalidRequest):
        connect(url)


def test_a_url_with_a_bad_queue_name_is_refused():
    with pytest.raises(InvalidName):
        connect("memory://x/Not A Queue")


@pytest.mark.parametrize("worker_id", [7, b"worker", "worker-\udce9", "w" * 1020], ids=lambda value: repr(value)[:12])
def test_a_worker_id_that_no_heartbeat_can_have_is_refused(worker_id):
    with pytest.raises(InvalidName, match="worker id"):
        connect("memory://x/emails", worker_id=worker_id)


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:s3cret@host:9000/bucket",
        "s3://key:s3cret@host:9000",
        "s3://key:s3cret@host:port/bucket/queue",
        "s3://:s3cret@host/bucket/queue",
        "s3://s3cret@host/bucket/queue",
        "http://key:s3cret@host/bucket/queue",
        "s3://key:s3cret@host/bucket/Not A Queue",
        "s3://key:my/s3cret@host/bucket/queue",
        "s3://key:s3cret@host[/bucket/queue",
        "s3://key:s3cret@ho\u2100st/bucket/queue",
        "s3://[my-bucket]/queue",
    ],
)
def test_an_error_about_a_url_does_not_repeat_its_credentials(url):
    with pytest.raises(InvalidRequest) as refused:
        connect(url)
    assert "s3cret" not in str(refused.value)


def test_a_url_names_host_and_credentials_and_nothing_else_may():
    with pytest.raises(InvalidRequest, match="endpoint_url"):
        connect("s3://key:s3cret@host/bucket/queue", endpoint_url="http://elsewhere")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("s3://k:s@minio.example:9000/b/q", "https://minio.example:9000"),
        ("s3://k:s@minio.example/b/q", "https://minio.example"),
        ("s3+http://k:s@minio.example:9000/b/q", "http://minio.example:9000"),
        ("s3://k:s@localhost:9000/b/q", "http://localhost:9000"),
        ("s3://k:s@127.0.0.1:9000/b/q", "http://127.0.0.1:9000"),
        ("s3://k:s@[::1]:9000/b/q", "http://[::1]:9000"),
    ],
)
def test_only_this_machine_is_spoken_to_in_plain_text_unless_the_url_says_so(url, address):
    queue = connect(url, store="boto3", region="us-east-1")
    assert queue.name == "q"
    assert queue.store.url == "s3://b"
    assert address in queue.presign()[0]
    assert "k%2F" in queue.presign()[0]
