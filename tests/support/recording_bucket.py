"""A bucket that writes down every request, from whichever process it is sent: executors are processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from support.fault_proxy import Request as HttpRequest
from support.fault_proxy import fault_proxy

if TYPE_CHECKING:
    from spark.storage.bucket import Bucket


#: POST begins and ends an upload in parts.
VERBS = {"GET": "get", "HEAD": "head", "PUT": "put", "POST": "put", "DELETE": "delete"}


class Request(NamedTuple):
    #: put, get, head, delete or list.
    verb: str
    #: Of a LIST, its prefix.
    key: str
    if_match: str | None
    if_absent: bool


def recording_bucket(bucket: Bucket, log: Path, *, table_endpoint: str = "") -> Bucket:
    """The same bucket; `requests_in(log)` tells what it was asked. The archive's table has a client of its own:
    `table_endpoint` is a `recording_proxy` before the same server.

    Defined in here, and not by a class of this module, so that it travels to executors, which do not see the tests.
    """
    from spark.storage.bucket import Bucket

    verbs = {"put": "put", "open": "get", "head": "head", "delete": "delete", "list": "list"}
    # Of many keys, the first; the letter for it is that of a delete.
    verbs["delete_many"] = "delete"
    where = str(log)

    class Store:
        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            found = getattr(self._real, name)
            if name not in verbs:
                # Whatever sends a request must be known here, or it would not be counted.
                assert name == "url", f"{name} of a store is not recorded"
                return found

            def send(key: Any, *given: Any, **options: Any) -> Any:
                first = next(iter(key), "") if name == "delete_many" else key
                told = [verbs[name], first, options.get("if_match"), bool(options.get("if_absent"))]
                # One write each, to a file that is only ever added to: lines of two processes do not mix.
                file = os.open(where, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                try:
                    os.write(file, json.dumps(told).encode() + b"\n")
                finally:
                    os.close(file)
                return found(key, *given, **options)

            return send

    class Recorded(Bucket):
        def store(self) -> Any:
            return Store(Bucket(self.name, self.endpoint_url, self.region).store())

        def archive(self) -> Any:
            assert table_endpoint, "what the table asks for is not recorded"
            return Bucket(self.name, table_endpoint, self.region).archive()

        def client(self) -> Any:
            raise NotImplementedError("what goes past the store is not recorded")

    return Recorded(bucket.name, bucket.endpoint_url, bucket.region)


@contextlib.contextmanager
def recording_proxy(endpoint: str, log: Path) -> Iterator[str]:
    """The address of a server that writes down what it passes on, in the same form and into the same file."""
    with fault_proxy(endpoint, seed=1) as proxy:

        def note(request: HttpRequest) -> str:
            path = request.head.split(b" ", 2)[1].decode()
            asked = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
            key = unquote(urlsplit(path).path).split("/", 2)[2:]
            verb = "list" if "list-type" in asked else VERBS[request.method]
            told = [verb, asked.get("prefix", "") if verb == "list" else key[0], None, request.is_conditional]
            with log.open("a") as file:
                file.write(json.dumps(told) + "\n")
            return ""

        proxy.draw = note  # type: ignore[method-assign]
        yield proxy.endpoint


def requests_in(log: Path) -> Iterator[Request]:
    if log.exists():
        for line in log.read_text().splitlines():
            yield Request(*json.loads(line))
