"""What two failures of one kind have in common, and what differs between them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3queue.documents import failure_group
from s3queue.documents.failure_group import GROUP_CHARACTERS, GroupKey, Selection, normalise


@pytest.mark.parametrize(
    ("first", "second", "form"),
    [
        ("no address for customer 4711", "no address for customer 42", "no address for customer *"),
        ("'order-17' is not paid", '"o" is not paid', "* is not paid"),
        ("anna@example.org bounced", "bob.b+x@mail.example.com bounced", "* bounced"),
        ("GET https://a.example/x?y=1 said 503", "GET http://b/ said 500", "GET * said *"),
        ("0199b3c4-1111-7222-8333-444455556666 is gone", "0199b3c4-aaaa-7bbb-8ccc-ddddeeeeffff is gone", "* is gone"),
        ("fingerprint deadbeefcafe", "fingerprint 0123456789ab", "fingerprint *"),
        ("no such key: orders/messages/p200/abc", "no such key: emails/dead/messages/x.json", "no such key: *"),
        ("/tmp/a.json is missing", "/var/lib/queue/b.json is missing", "* is missing"),
        ("late since 2026-11-16T10:15:00Z", "late since 2025-01-01T00:00:00.123+01:00", "late since *"),
        ("took 1.5 s", "took -12 s", "took * s"),
        ("lines [1, 2, 3] are bad", "lines [4] are bad", "lines [*] are bad"),
        ("bad: {'a': 1, 'b': 'two'}", "bad: {'a': 1}", "bad: {*}"),
        ("0x7f3a\n  failed", "0xff failed", "* failed"),
        ("10.0.0.1:5432 refused", "192.168.1.77:99 refused", "* refused"),
    ],
)
def test_what_differs_is_a_placeholder(first, second, form):
    assert normalise(first) == normalise(second) == form


@pytest.mark.parametrize(
    "text",
    [
        "S3 said no",
        "I/O error on the read/write path",
        "can't connect, it's closed",
        "user_id is missing",
        "the handler's model wants a list",
        "'customer_id'",
    ],
)
def test_what_names_a_kind_of_failure_stays(text):
    assert normalise(text) == text


def test_different_failures_have_different_forms():
    texts = ["mailbox 1 is full", "mailbox 1 is unknown", "line 3 is no JSON", "no line 3", "mailbox 'x' was full"]
    assert len({normalise(text) for text in texts}) == len(texts)


def test_an_empty_text_has_a_form_that_can_be_typed():
    assert normalise("") == normalise(" \n") == normalise("(no message)") == "(no message)"


def test_a_long_text_is_cut():
    assert normalise("word " * 500).endswith("…")
    assert normalise("word " * 500) == normalise("word " * 400)


@given(st.one_of(st.text(), st.text(alphabet="'\"`“”«»/@:*.,-=… 1aé{}[]\\", max_size=400)))
def test_the_form_of_a_form_is_itself(text):
    form = normalise(text)
    assert normalise(form) == form
    assert len(form) <= GROUP_CHARACTERS


def test_no_text_is_too_long():
    for text in ("'" * 20_000, "a/" * 20_000, "a@" * 20_000, "*," * 20_000, "«" * 20_000, "http://" * 3_000):
        assert len(normalise(text)) <= GROUP_CHARACTERS


def test_a_selection_takes_the_form_or_any_text_of_the_group():
    key = GroupKey("Reject", "no address for customer *")
    assert Selection.of("Reject", "no address for customer 99").has(key)
    assert Selection.of(None, "no address for customer *").has(key)
    assert Selection.of("Reject", None).has(key)
    assert not Selection.of("ValueError", "no address for customer *").has(key)
    assert not Selection.of("Reject", "").has(key)


@pytest.mark.parametrize(
    "unit", ["+", "%", "@", "=", "a", "a+", "x@", "a/", "/", "*", "* ", "'", "“", "a.", "1-", "a%b/c", "=/", "-_@"]
)
def test_no_text_takes_long_to_normalise(unit):
    """Its own processor time, far from what a slow machine needs: with a look from each character it took a second."""
    patterns = [getattr(failure_group, name) for name in ("_URL", "_ADDRESS", "_QUOTED", "_UUID", "_KEY", "_SEVERAL")]
    text = (unit * 20_000)[:20_000] + "!"
    before = time.process_time()
    for pattern in patterns:
        pattern.sub("*", text)
    assert time.process_time() - before < 1.0
