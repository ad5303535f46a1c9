"""What a dataclass's annotations promise is what its handler gets."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import InitVar, dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import NewType
from uuid import UUID

import pytest

from s3queue.plain import encode_payload
from s3queue.worker.fields import as_dataclass

OrderId = NewType("OrderId", int)


class Color(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


@dataclass
class Named:
    by_order: dict[OrderId, str]
    by_color: dict[Color, int]
    by_level: dict[Level, int]


@dataclass
class Counts:
    by_number: dict[int, str]
    by_flag: dict[bool, int]
    by_share: dict[float, int]
    order: OrderId


@dataclass
class Scaled:
    value: int
    factor: InitVar[int]

    def __post_init__(self, factor: int) -> None:
        self.value *= factor


@dataclass
class Defaulted:
    value: int
    factor: InitVar[int] = 1


def test_keys_that_json_makes_text_are_read_back():
    counts = Counts({1: "a", 20: "b"}, {True: 1, False: 0}, {0.5: 1}, OrderId(7))

    assert as_dataclass(Counts, json.loads(encode_payload(counts))) == counts


def test_keys_of_named_kinds_are_read_back_too():
    named = Named({OrderId(5): "x"}, {Color.RED: 1}, {Level.LOW: 2})

    found = as_dataclass(Named, json.loads(encode_payload(named)))

    assert found == named
    assert [type(key) for keys in (found.by_order, found.by_color, found.by_level) for key in keys] == [
        int,
        Color,
        Level,
    ]
    with pytest.raises(TypeError, match=r"Named\.by_level"):
        as_dataclass(Named, {"by_order": {}, "by_color": {}, "by_level": {"7": 1}})


@pytest.mark.parametrize("wrong", [{"by_number": {"x": "a"}}, {"by_flag": {"maybe": 1}}, {"order": "7"}])
def test_an_error_names_the_field(wrong):
    found = {"by_number": {}, "by_flag": {}, "by_share": {}, "order": 1} | wrong

    with pytest.raises(TypeError, match=f"Counts.{next(iter(wrong))}"):
        as_dataclass(Counts, found)


def test_a_class_that_needs_what_is_not_kept_is_refused_and_says_why():
    with pytest.raises(TypeError, match=r"Scaled.factor: an InitVar is not kept in JSON; give it a default"):
        as_dataclass(Scaled, {"value": 1})

    assert as_dataclass(Defaulted, {"value": 2}) == Defaulted(2)


class Pause(Enum):
    SHORT = timedelta(seconds=30)
    EXACT = Decimal("1.50")
    PAIR = (1, 2)


@dataclass
class Abstract:
    ids: Sequence[UUID]
    prices: Mapping[str, Decimal]
    days: MutableSequence[date]
    stock: MutableMapping[int, Sequence[Decimal]]
    names: Sequence[str]
    text: Sequence[str]
    pauses: list[Pause]


def test_a_sequence_a_mapping_and_an_enumeration_of_what_json_does_not_know_are_read_back():
    sent = Abstract(
        ids=[UUID(int=1)],
        prices={"a": Decimal("9.90")},
        days=[date(2026, 1, 5)],
        stock={7: [Decimal("1.0")]},
        names=["a", "b"],
        text="a text is a sequence of texts",
        pauses=[*Pause],
    )

    found = as_dataclass(Abstract, json.loads(encode_payload(sent)))

    assert found == sent
    assert repr(found) == repr(sent)
    for wrong in ({"ids": "text"}, {"ids": [7]}, {"prices": []}, {"pauses": [31.0]}):
        with pytest.raises(TypeError, match=rf"Abstract\.{next(iter(wrong))}"):
            as_dataclass(Abstract, json.loads(encode_payload(sent)) | wrong)


@dataclass
class Bare:
    items: typing.Sequence
    rows: typing.MutableSequence | None = None


def test_a_sequence_that_names_no_items_is_what_json_has():
    assert as_dataclass(Bare, {"items": [1, "a"], "rows": [2.5]}) == Bare([1, "a"], [2.5])
