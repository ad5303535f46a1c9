"""A key that UTF-8 cannot encode is the caller's mistake: refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from s3queue.errors import InvalidName
from s3queue.store import ObjectStore
from s3queue.stores.direct import DirectStore
from s3queue.stores.memory import MemoryStore
from s3queue.stores.s3 import S3Store, client

#: As an argument of a command comes from a name in another encoding.
ODD = "orders/messages/\udcff"
NOWHERE = "http://127.0.0.1:9"


def stores() -> list[ObjectStore]:
    keys: dict[str, Any] = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    return [
        MemoryStore(),
        DirectStore("jobs", endpoint_url=NOWHERE, region="eu-west-1", tries=1, keys=("a", "b")),
        S3Store("jobs", client=client(NOWHERE, "eu-west-1", **keys)),
    ]


@pytest.mark.parametrize("store", stores(), ids=["memory", "direct", "boto3"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.put(ODD, b"x"),
        lambda store: store.open(ODD),
        lambda store: store.head(ODD),
        lambda store: store.delete(ODD),
        lambda store: store.copy("orders/messages/x", ODD),
        lambda store: store.copy(ODD, "orders/messages/x"),
        lambda store: store.list(ODD),
    ],
    ids=["put", "get", "head", "delete", "copy to", "copy from", "list"],
)
def test_it_is_refused_by_every_store(store: ObjectStore, ask: Callable[[ObjectStore], object]) -> None:
    with pytest.raises(InvalidName, match="not valid Unicode"):
        ask(store)
