"""Values: what a handler returns and what a producer enqueues is stored, and read back as it was."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pydantic
import pytest

import infra
from s3queue import InvalidRequest, define
from s3queue.documents.batch import Lines
from s3queue.documents.message import encode_body
from s3queue.encoding import RESULT_BYTES, storable

AT = datetime(2026, 11, 16, 10, 15, 0, 123456, tzinfo=UTC)
ID = UUID("0199a7c4-7c1e-7000-8000-000000000001")


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


class Mood(StrEnum):
    GOOD = "good"


@dataclasses.dataclass
class Item:
    id: UUID
    price: Decimal


@dataclasses.dataclass
class Order:
    items: list[Item]
    at: datetime
    on: date
    clock: time
    within: timedelta
    colour: Colour
    size: Size
    photo: bytes
    tags: frozenset[str]
    pair: tuple[int, str]
    prices: dict[str, Decimal]
    parent: Order | None = None
    note: str | None = None
    #: Computed: not a part of the payload.
    total: Decimal = dataclasses.field(init=False, default=Decimal(0))

    def __post_init__(self) -> None:
        self.total = sum((item.price for item in self.items), Decimal(0))


class Receipt(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    number: int = pydantic.Field(alias="receiptNumber")
    price: Decimal = Decimal("0.10")
    at: datetime = AT

    @pydantic.computed_field
    def label(self) -> str:
        return f"no. {self.number}"


def order(**changes: Any) -> Order:
    given: dict[str, Any] = {
        "items": [Item(ID, Decimal("9.90")), Item(ID, Decimal("0.1000000000000000000000000001"))],
        "at": AT,
        "on": date(2026, 11, 16),
        "clock": time(9, 30),
        "within": timedelta(minutes=1.5),
        "colour": Colour.RED,
        "size": Size.LARGE,
        "photo": b"\x00\xff",
        "tags": frozenset({"b", "a"}),
        "pair": (1, "one"),
        "prices": {"net": Decimal("8.32")},
    }
    return Order(**(given | changes))


@pytest.mark.parametrize(
    ("result", "stored"),
    [
        (AT, "2026-11-16T10:15:00.123456Z"),
        (AT.astimezone(timezone(timedelta(hours=2))), "2026-11-16T12:15:00.123456+02:00"),
        (AT.replace(tzinfo=None), "2026-11-16T10:15:00.123456"),
        (date(2026, 11, 16), "2026-11-16"),
        (time(9, 30), "09:30:00"),
        (timedelta(minutes=1.5), 90.0),
        (ID, str(ID)),
        (Decimal("0.10"), "0.10"),
        (b"\x00\xff", "AP8="),
        (bytearray(b"x"), "eA=="),
        (Colour.RED, "red"),
        (Size.LARGE, 3),
        (Mood.GOOD, "good"),
        ({3, 1, 2}, [1, 2, 3]),
        ((1, AT.date()), [1, "2026-11-16"]),
        (MappingProxyType({"a": {1}}), {"a": [1]}),
        ({"inside": [Item(ID, Decimal("1"))]}, {"inside": [{"id": str(ID), "price": "1"}]}),
        (
            Receipt(receiptNumber=7),
            {"receiptNumber": 7, "price": "0.10", "at": "2026-11-16T10:15:00.123456Z", "label": "no. 7"},
        ),
        ([Item(ID, Decimal("2")), None], [{"id": str(ID), "price": "2"}, None]),
    ],
)
def test_a_result_is_stored_as_json(bench, queue, result, stored):
    assert storable(result)[1] == ""
    path = queue.enqueue(b"1")
    assert bench.processor(queue, lambda body: result).run(path) == "completed"

    record = queue.status(path).record
    assert (record.result, record.result_error) == (stored, "")


def test_a_set_of_what_has_no_order_is_stored_all_the_same():
    kept, problem = storable({1, "a"})

    assert problem == ""
    assert set(kept) == {1, "a"}


class Broken:
    def model_dump(self, **_: Any) -> Any:
        raise RuntimeError("no such column")


loop: list[Any] = []
loop.append({"set": {1}, "loop": loop})


@pytest.mark.parametrize(
    "result",
    [
        object(),
        Order,
        {"a": {ID: 1}},
        Item(ID, float("nan")),  # type: ignore[arg-type]
        Receipt.model_construct(price=float("inf")),  # type: ignore[arg-type]
        loop,
        Broken(),
        iter([1]),
    ],
)
def test_a_result_that_cannot_be_stored_completes_the_message_and_says_why(bench, queue, result):
    path = queue.enqueue(b"1")
    assert bench.processor(queue, lambda body: result).run(path) == "completed"

    record = queue.status(path).record
    assert record.result is None
    assert type(result).__name__ in record.result_error


def test_a_model_that_is_too_large_is_left_out():
    assert str(RESULT_BYTES) in storable({"photo": b"x" * RESULT_BYTES})[1]


def test_the_results_of_lines_are_stored_alike():
    lines = Lines()
    lines.complete(1, Item(ID, Decimal("1")))
    lines.complete(2, Broken())

    assert lines.results == {1: {"id": str(ID), "price": "1"}}
    assert list(lines.done) == [1, 2]


def test_a_dataclass_comes_out_as_it_went_in(bench, queue):
    sent, seen = order(parent=order(note="first")), []

    def handler(found: Order) -> None:
        seen.append(found)

    path, batch = queue.enqueue(sent), queue.enqueue_many([sent, sent])[0]
    processor = bench.processor(queue, handler)

    assert (processor.run(path), processor.run(batch)) == ("completed", "completed")
    assert seen == [sent, sent, sent]


def test_a_model_comes_out_as_it_went_in(bench, queue):
    sent, seen = Receipt(receiptNumber=17), []

    def handler(found: Receipt) -> None:
        seen.append(found)

    path, batch = queue.enqueue(sent), queue.enqueue_many([sent])[0]
    processor = bench.processor(queue, handler)

    assert (processor.run(path), processor.run(batch)) == ("completed", "completed")
    assert seen == [sent, sent]


def test_models_and_dates_may_lie_within_a_dict():
    body, content_type = encode_body(
        {"order": Item(ID, Decimal("1")), "receipts": [Receipt(receiptNumber=1)], "at": AT}
    )

    assert content_type == "application/json"
    assert json.loads(body)["order"] == {"id": str(ID), "price": "1"}
    assert json.loads(body)["receipts"][0]["receiptNumber"] == 1


def test_bytes_and_text_stay_what_they_are():
    assert encode_body(b"\x00") == (b"\x00", "application/octet-stream")
    assert encode_body("{}") == (b"{}", "text/plain; charset=utf-8")


@pytest.mark.parametrize("body", [Item(ID, float("nan")), Broken.model_dump, object()])  # type: ignore[arg-type]
def test_a_body_that_cannot_be_json_is_refused_before_anything_is_written(bench, queue, body):
    with pytest.raises(InvalidRequest):
        queue.enqueue(body)
    with pytest.raises(InvalidRequest):
        queue.enqueue_many([body])
    assert bench.keys() == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"at": "yesterday"}, "Order.at: "),
        ({"on": 5}, "Order.on: must be a JSON str, not int"),
        ({"photo": "%%"}, "Order.photo: "),
        ({"colour": "green"}, "Order.colour: 'green' is not a valid Colour"),
        ({"prices": {"net": "much"}}, "Order.prices: 'much' is not a number"),
        ({"items": [{"id": "1", "price": 1}]}, "Order.items: Item.id: "),
        ({"pair": [1]}, "Order.pair: "),
        ({"tags": "a"}, "Order.tags: must be a JSON list, not str"),
        ({"within": True}, "Order.within: "),
        ({"total": "1"}, "Order has no field 'total'"),
    ],
)
def test_what_does_not_fit_names_the_field(changes, said):
    definition = define("orders")

    @definition.handler
    def handle(found: Order) -> None: ...

    payload = json.loads(encode_body(order())[0]) | changes
    with pytest.raises(Exception, match="cannot be parsed") as refused:
        definition.parse(json.dumps(payload).encode())
    assert said in str(refused.value)


def test_a_missing_field_is_named():
    definition = define("orders")

    @definition.handler
    def handle(found: Item) -> None: ...

    with pytest.raises(Exception, match=r"Item\.price: the field is missing"):
        definition.parse(json.dumps({"id": str(ID)}).encode())


def test_pydantic_is_not_imported_for_any_of_this():
    code = (
        "import sys, dataclasses, decimal, s3queue\n"
        "from s3queue.encoding import storable\n"
        "from s3queue.documents.message import encode_body\n"
        "C = dataclasses.make_dataclass('C', ['x'])\n"
        "assert storable(C(decimal.Decimal(1))) == ({'x': '1'}, '')\n"
        "assert encode_body(C({1}))[0] == b'{\"x\":[1]}'\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(infra.FUNCTIONS)}, check=True)
