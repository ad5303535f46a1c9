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


@pytest.mark.parametrize("url", ["s3://", "s3://bucket", "s3://bucket/", "http://bucket/queue", "bucket/queue", ""])
def test_a_url_that_names_no_queue_is_refused(url):
    with pytest.raises(InvalidRequest):
        connect(url)


def test_a_url_with_a_bad_queue_name_is_refused():
    with pytest.raises(InvalidName):
        connect("memory://x/Not A Queue")
