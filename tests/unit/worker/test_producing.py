"""Enqueuing through a definition: what its handler could not take is refused, with the field's name."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, BinaryIO
from uuid import uuid4

import pytest

from s3queue import InvalidRequest, Worker, connect, define
from s3queue.connect import _memories
from support.payloads import Email


@dataclasses.dataclass
class Order:
    id: int
    price: float = 0.0


@pytest.fixture
def url(monkeypatch):
    found = f"memory://{uuid4().hex}"
    monkeypatch.setenv("S3QUEUE_URL", f"{found}/another")
    return found


def stored(url: str) -> list[str]:
    memory = _memories[url.removeprefix("memory://")]
    return [entry.key for entry in memory.list("").objects]


def taking(annotation: Any, **options: Any) -> Any:
    orders = define("orders", **options)

    def handle(body) -> None: ...

    handle.__annotations__["body"] = annotation
    orders.handler(handle)
    return orders


@pytest.mark.parametrize(
    ("annotation", "good", "bad", "said"),
    [
        (Email, Email(to="a"), {"to": "a", "copies": "many"}, "copies: Input should be a valid integer"),
        (Email, {"to": "a"}, {"copies": 1}, "to: Field required"),
        (Order, Order(1), {"id": "1"}, "Order.id: must be a JSON int, not str"),
        (Order, {"id": 1}, {"price": 1.0}, "Order.id: the field is missing"),
        (Order, {"id": 1}, {"id": 1, "colour": "red"}, "Order has no field 'colour'"),
        (dict, {}, [1], "must be a JSON dict, not list"),
        (int, 1, "one", "Expecting value"),
        (str, "text", b"\xff", "invalid start byte"),
        (list[Order], [{"id": 1}, {"id": 2}], [{"id": 1}, {"id": None}], "Order.id: must be a JSON int, not NoneType"),
    ],
)
def test_what_the_handler_cannot_take_is_refused_and_nothing_is_written(url, annotation, good, bad, said):
    orders = taking(annotation)

    with pytest.raises(InvalidRequest) as refused:
        orders.enqueue(bad)
    assert said in str(refused.value)
    assert "'orders'" in str(refused.value)
    assert stored(url) == []

    assert stored(url) != [orders.enqueue(good)]
    assert len(stored(url)) == 1


@pytest.mark.parametrize("annotation", [bytes, BinaryIO, Any])
def test_what_takes_anything_refuses_nothing(url, annotation):
    taking(annotation).enqueue(b"1")


def test_without_a_handler_there_is_nothing_to_check_against(url):
    define("orders").enqueue(b"\xff")
    assert len(stored(url)) == 1


def test_every_line_of_many_is_checked(url):
    orders = taking(Email)
    with pytest.raises(InvalidRequest, match=r"body 1: .*copies: Input should be"):
        orders.enqueue_many([Email(to="a"), {"to": "b", "copies": "x"}])
    assert stored(url) == []
    assert len(orders.enqueue_many([Email(to="a"), {"to": "b"}], per_object=1)) == 2


def test_a_batch_that_is_sent_as_a_whole_is_checked_line_by_line(url):
    orders = taking(Email)
    lines = [json.dumps({"to": "a"}), json.dumps({"to": 5})]
    with pytest.raises(InvalidRequest, match=r"line 2: .*to: Input should be a valid string"):
        orders.enqueue("\n".join(lines), name="all.ndjson")
    orders.enqueue(lines[0] + "\n\n", name="all.ndjson")


def test_settings_of_the_definition_count_and_its_messages_run(url):
    orders = taking(Order, shards=4)
    path = orders.enqueue(Order(7), priority=3)
    assert path.count("/") == 3

    queue = connect(f"{url}/orders")
    assert queue.claim(path).message.json() == {"id": 7, "price": 0.0}


def test_the_bucket_is_connected_to_once(url):
    orders = taking(dict)
    assert orders.connect() is orders.connect()
    assert orders.connect(url) is not orders.connect()


def test_a_connected_queue_checks_too_and_serves_a_worker(url):
    orders = taking(Order)
    queue = orders.connect(f"{url}/orders")
    with pytest.raises(InvalidRequest, match=r"Order\.id"):
        queue.enqueue({})
    queue.enqueue({"id": 1})
    worker = Worker(queue, orders, sweep=False)
    worker.run_until_empty()
    assert worker.stats()["succeeded"] == 1


def test_another_queue_and_no_bucket_are_refused(url, monkeypatch):
    with pytest.raises(InvalidRequest, match="names the queue 'emails'"):
        define("orders").connect(f"{url}/emails")
    monkeypatch.delenv("S3QUEUE_URL")
    monkeypatch.delenv("S3QUEUE_BUCKET", raising=False)
    with pytest.raises(InvalidRequest, match="set S3QUEUE_URL"):
        define("orders").enqueue({})


@pytest.mark.parametrize("url", ["s3://key:s3cret@localhost:9000/jobs", "s3://key:s3cret@localhost:9000/jobs/orders"])
def test_a_url_may_name_host_and_credentials_before_the_bucket(monkeypatch, url):
    monkeypatch.setenv("S3QUEUE_URL", url)
    for queue in (define("orders").connect(), define("orders").connect(url, region="us-east-1")):
        assert (queue.store.url, queue.name) == ("s3://jobs", "orders")


def test_an_error_about_a_definitions_url_does_not_repeat_its_credentials():
    with pytest.raises(InvalidRequest, match="names the queue 'emails'") as refused:
        define("orders").connect("s3://key:s3cret@localhost:9000/jobs/emails")
    assert "s3cret" not in str(refused.value)


def test_a_function_sends_to_its_own_bucket(monkeypatch):
    monkeypatch.delenv("S3QUEUE_URL", raising=False)
    monkeypatch.setenv("S3QUEUE_BUCKET", "jobs")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert define("orders").connect(store="direct").store.url == "s3://jobs"


def test_a_long_list_of_problems_is_cut(url):
    class Wide(Email):
        a: int
        b: int
        c: int
        d: int
        e: int

    with pytest.raises(InvalidRequest, match=r"; …$"):
        taking(Wide).enqueue({})
