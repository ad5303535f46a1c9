"""What a dataclass's annotations promise is what its handler gets."""

from __future__ import annotations

import json
from dataclasses import InitVar, dataclass
from enum import IntEnum, StrEnum
from typing import NewType

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
