"""Payloads are decoded as json.loads decodes them, whichever decoder does it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s3queue.worker import parsing

FAST = parsing.fast_decoder()
assert FAST, "the tests need msgspec, as requirements.txt has it"
DECODERS = {"scanner": parsing._decode, "msgspec": FAST}

#: What decoders are known to see differently.
ODD = (
    b"18446744073709551616",
    b'{"n": -18446744073709551617}',
    b"9" * 30,
    b"9" * 5000,
    b'{"n": ' + b"9" * 5000 + b"}",
    b"-0",
    b"-0.0",
    b"1e400",
    b'{"n": -1e999}',
    b"NaN",
    b'{"n": NaN, "m": -Infinity}',
    b'{"a": 1, "a": 2}',
    b'{"a": {"b": 1}, "a": {"c": 2}}',
    b'{"s": "\\ud800"}',
    b'{"s": "\\ud83d\\ude00"}',
    b'{"s": "\xed\xa0\x80"}',
    b'{"s": "\xff"}',
    b'\xef\xbb\xbf{"bom": 1}',
    '{"utf": 16}'.encode("utf-16"),
    '{"utf": 16}'.encode("utf-16-le"),
    '{"utf": 32}'.encode("utf-32-be"),
    b'{"s": "\x01"}',
    b'{"s": "\\u0000"}',
    b'{"s": "\\x"}',
    b"{} ",
    b"\t{} \r\n",
    b"\x0b{}",
    b"{}\x00",
    b"{}{}",
    b"{",
    b"{\x00",
    b"}",
    b"",
    b" ",
    b"[1,]",
    b'{"a": 1,}',
    b"{'a': 1}",
    b"01",
    b"1.",
    b".5",
    b"+1",
    b"true",
    b"null",
    b"nul",
    b"5e-324",
    b"2.2250738585072011e-308",
    b"0." + b"1" * 800,
    b"1" + b"0" * 309 + b".0",
    b"123456789012345678.5",
    b"[" * 200 + b"]" * 200,
    b'{"a":' * 200 + b"1" + b"}" * 200,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000,
)


def result(decode: Any, body: bytes) -> tuple[str, Any]:
    try:
        return "is", decode(body)
    except Exception as error:
        return "raises", (type(error), str(error))


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types, in the same order; NaN is itself, and -0.0 is not 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    return bool(one == other)


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize("body", ODD, ids=lambda body: repr(body[:24]))
def test_odd_payloads_are_decoded_or_refused_as_by_the_standard_library(decode, body):
    assert same(result(decode, body), result(json.loads, body))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
@given(value=VALUES, is_ascii=st.booleans(), indent=st.sampled_from([None, 1]))
def test_whatever_can_be_written_as_json_is_read_the_same(decode, value, is_ascii, indent):
    body = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode("utf-8", "surrogatepass")
    assert same(result(decode, body), result(json.loads, body))


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
@given(body=st.binary(max_size=20).map(lambda noise: b'{"a":' + noise) | st.binary(max_size=12))
@example(b'{"a": 1}')
def test_any_bytes_are_read_or_refused_the_same(decode, body):
    assert same(result(decode, body), result(json.loads, body))
