"""What every store promises of LIST: order, pages, groups, and keys as they were written."""

from __future__ import annotations

import pytest

from s3queue.errors import InvalidRequest
from s3queue.store import ObjectStore, listing

NAMES = [
    "plain",
    " spaces around ",
    "a+b",
    "50%",
    "%41",
    "q?x=1&y=2#z",
    "ünïcödé/日本/😀",
    "\U0010ffff",
    "'quotes\"<xml>&amp;",
    "~*!()$,;=:@",
    "tab\there",
    "new\nline",
    "\x01control",
    "\u2028separator",
    "../up",
    "./dot",
    "/double",
    "folder/",
    "back\\slash",
]


def fill(store: ObjectStore, *keys: str) -> None:
    for key in keys:
        store.put(key, key.encode())


def keys_of(store: ObjectStore, prefix: str, **options) -> list[str]:
    return [entry.key for entry in store.list(prefix, **options).objects]


def walk(store: ObjectStore, prefix: str, limit: int, delimiter: str = "") -> tuple[list[str], list[str], int]:
    """Every key, every group, and the number of pages, following the cursor."""
    keys, groups, pages, after = [], [], 0, ""
    while after is not None:
        page = store.list(prefix, after=after, delimiter=delimiter, limit=limit)
        assert len(page.objects) + len(page.prefixes) <= limit
        keys += [entry.key for entry in page.objects]
        groups += page.prefixes
        after = page.next_after
        pages += 1
        assert pages < 50, "the cursor does not advance"
    return keys, groups, pages


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.promise(f"name:messages/{name}")) for name in NAMES]
)
def test_any_name_can_be_written_read_listed_copied_and_deleted(store, name):
    key = f"messages/{name}"
    written = store.put(key, b"x")

    assert store.open(key).read() == b"x"
    assert store.head(key).etag == written.etag
    assert keys_of(store, "messages/") == [key]
    assert keys_of(store, key) == [key]
    assert store.copy(key, f"dead/{key}").etag == written.etag
    assert store.open(f"dead/{key}").read() == b"x"
    store.delete(key, if_match=written.etag)
    assert keys_of(store, "messages/") == []


def test_an_empty_key_is_refused(store):
    with pytest.raises(InvalidRequest):
        store.put("", b"x")


@pytest.mark.promise("key_of_1024_bytes")
def test_a_key_may_have_1024_bytes(store):
    key = "é" * 512

    store.put(key, b"x")

    assert keys_of(store, "") == [key]


@pytest.mark.promise("key_limit")
def test_a_key_of_more_than_1024_bytes_is_refused(store):
    with pytest.raises(InvalidRequest):
        store.put("/".join(["é" * 100] * 5) + "/" + "x" * 21, b"x")


def test_a_listing_describes_its_objects(store):
    written = store.put("messages/a", b"hello")

    (entry,) = store.list("messages/").objects

    assert (entry.key, entry.etag, entry.size) == ("messages/a", written.etag, 5)
    assert entry.modified_at == store.head("messages/a").modified_at


def test_an_empty_listing_is_one_page(store):
    page = store.list("nothing/")

    assert (page.objects, page.prefixes, page.next_after) == ((), (), None)


def test_keys_are_in_the_order_of_their_utf8_bytes(store):
    keys = [f"m/{name}" for name in ("B", "a", "Z", "z", "0", "~", "é", "日", "\uffee", "😀", "a-b", "a b", "ab", "_")]
    fill(store, *keys)

    assert keys_of(store, "m/") == sorted(keys, key=str.encode)


def test_a_prefix_is_text_and_no_folder(store):
    fill(store, "a/1", "a-b/1", "ab", "b")

    assert sorted(keys_of(store, "a")) == ["a-b/1", "a/1", "ab"]
    assert keys_of(store, "a/") == ["a/1"]


@pytest.mark.promise("flat_order")
def test_a_slash_sorts_like_any_other_byte(store):
    fill(store, "a/1", "a-b/1", "a", "a!", "a0/1")

    assert keys_of(store, "a") == ["a", "a!", "a-b/1", "a/1", "a0/1"]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_pages_lose_nothing_between_a_folder_and_its_siblings(store, limit):
    keys = ["m/a-b/1", "m/a/1", "m/a/2", "m/a0", "m/b!/1", "m/b/1"]
    fill(store, *keys)

    assert sorted(walk(store, "m/", limit)[0]) == keys


def test_after_excludes_the_key_itself_and_need_not_exist(store):
    fill(store, "m/a", "m/b", "m/c")

    assert keys_of(store, "m/", after="m/a") == ["m/b", "m/c"]
    assert keys_of(store, "m/", after="m/aa") == ["m/b", "m/c"]
    assert keys_of(store, "m/", after="a") == ["m/a", "m/b", "m/c"]
    assert keys_of(store, "m/", after="m/c") == []
    assert keys_of(store, "m/", after="z") == []


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_pages_follow_each_other_without_a_gap_or_a_repetition(store, limit):
    keys = sorted(f"m/{name}" for name in ("a", "b b", "c+", "d%", "é", "日", "😀"))
    fill(store, *keys)

    listed, groups, pages = walk(store, "m/", limit)

    assert (listed, groups) == (keys, [])
    assert pages == -(-len(keys) // limit)


def test_a_last_page_that_is_just_full_is_the_last(store):
    fill(store, "m/a", "m/b")

    assert store.list("m/", limit=2).next_after is None
    assert store.list("m/", limit=1).next_after == "m/a"


def test_a_delimiter_groups_what_lies_behind_it(store):
    fill(store, "q/leases/m/a", "q/leases/m/b", "q/messages/a", "q/queue.json", "q/messages/b", "other/x")

    page = store.list("q/", delimiter="/")

    assert [entry.key for entry in page.objects] == ["q/queue.json"]
    assert page.prefixes == ("q/leases/", "q/messages/")
    assert page.next_after is None


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_pages_continue_behind_a_group_and_never_enter_it(store, limit):
    fill(store, "q/a/1", "q/a/2", "q/a/é", "q/b", "q/c/1", "q/c/2", "q/d", "q/é/1", "q/é/2", "q/😀/1", "q/😀😀")

    keys, groups, _ = walk(store, "q/", limit, delimiter="/")

    assert keys == ["q/b", "q/d", "q/😀😀"]
    assert groups == ["q/a/", "q/c/", "q/é/", "q/😀/"]


@pytest.mark.promise("after_inside_a_group")
def test_after_inside_a_group_still_shows_the_rest_of_it(store):
    fill(store, "q/a/1", "q/a/2", "q/b/1")

    assert store.list("q/", after="q/a/1", delimiter="/").prefixes == ("q/a/", "q/b/")
    assert store.list("q/", after="q/a/\U0010ffff", delimiter="/").prefixes == ("q/b/",)


def test_listing_walks_all_pages_or_as_many_as_asked(store):
    fill(store, *(f"m/{number:02d}" for number in range(12)))

    class SmallPages:
        def list(self, prefix: str, *, after: str):
            return store.list(prefix, after=after, limit=5)

    assert [len(page.objects) for page in listing(SmallPages(), "m/")] == [5, 5, 2]
    assert [len(page.objects) for page in listing(SmallPages(), "m/", pages=2)] == [5, 5]
    assert [len(page.objects) for page in listing(SmallPages(), "m/", after="m/09")] == [2]


def test_more_than_a_thousand_objects_take_a_second_page(store, server):
    if server.name == "seaweedfs":
        pytest.skip("a thousand PUTs through a real server take too long; its pages are tested above")
    fill(store, *(f"m/{number:04d}" for number in range(1001)))

    first = store.list("m/")

    assert len(first.objects) == 1000
    assert keys_of(store, "m/", after=first.next_after) == ["m/1000"]
