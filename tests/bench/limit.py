"""Against the limit: what the queue makes of the requests per second that the client and the server give it.

The bare loop sends the very requests of a message (same verbs, sizes, prefixes and conditions) straight through the
client library, from as many threads, and does nothing else. 1.0 would be a queue that costs nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from s3queue.connect import StoreKind
from s3queue.stores.direct import DirectStore
from s3queue.stores.s3 import client
from support.s3_servers import fresh_bucket, s3_client, seaweedfs_server

from .instruments.harness import Bench
from .instruments.scene import BODY, credentials, drain, fill, in_threads, queue_at, seconds

GOAL = 0.9
#: What a lease and a record of such a message weigh.
LEASE, RECORD = b"l" * 220, b"r" * 330
#: Messages of one repetition: boto3 takes as long for its few as ours for its many.
COUNTS: dict[StoreKind, int] = {"direct": 2500, "boto3": 300}
CONCURRENCY = 8
#: One bare request: verb, key, headers, body → ETag.
Send = Callable[[str, str, dict[str, str], bytes], str]


def run(bench: Bench) -> None:
    with bench.part("limit", "Against the limit of client and server"), seaweedfs_server() as endpoint, credentials():
        for kind, count in COUNTS.items():
            bench.compare(
                f"pull worker, {kind}, {CONCURRENCY} threads",
                lambda kind=kind, count=count: _worker(endpoint, kind, count),
                "5 bare requests",
                lambda kind=kind, count=count: _bare(endpoint, kind, count, _life),
                unit="messages/s",
                goal=GOAL,
            )
            bench.compare(
                f"enqueue, {kind}, {CONCURRENCY} threads",
                lambda kind=kind, count=count: _enqueue(endpoint, kind, count * 2),
                "1 bare PUT",
                lambda kind=kind, count=count: _bare(endpoint, kind, count * 2, _put),
                unit="messages/s",
                goal=GOAL,
            )


def _worker(endpoint: str, kind: StoreKind, count: int) -> float:
    queue = queue_at(endpoint, fresh_bucket(s3_client(endpoint)), store=kind)
    fill(queue, count, threads=CONCURRENCY)
    drained: list[int] = []
    took = seconds(lambda: drained.append(drain(queue, CONCURRENCY)))
    assert drained == [count], f"{drained} of {count} were processed"
    return count / took


def _enqueue(endpoint: str, kind: StoreKind, count: int) -> float:
    queue = queue_at(endpoint, fresh_bucket(s3_client(endpoint)), store=kind)
    fill(queue, CONCURRENCY, threads=CONCURRENCY)  # connections
    return count / seconds(lambda: fill(queue, count, threads=CONCURRENCY))


def _bare(endpoint: str, kind: StoreKind, count: int, requests: Callable[[Send, str, str], None]) -> float:
    send = _boto3(endpoint) if kind == "boto3" else _direct(endpoint)
    numbers = itertools.count()
    etags: dict[str, str] = {}

    def prepare(_: int) -> None:
        name = f"{next(numbers):06}"
        etags[name] = send("PUT", f"bench/messages/{name}", {}, BODY)

    # As for the queue: what is worked off is there before the clock starts, and so are the connections.
    in_threads(CONCURRENCY, prepare, range(count if requests is _life else CONCURRENCY))
    if requests is _put:
        etags = {f"new-{number:06}": "" for number in range(count)}
    return count / seconds(lambda: in_threads(CONCURRENCY, lambda item: requests(send, *item), etags.items()))


def bare_puts(endpoint: str, count: int = 1000) -> float:
    """PUTs a second, straight through the functions' store."""
    with credentials():
        return _bare(endpoint, "direct", count, _put)


def _life(send: Send, name: str, etag: str) -> None:
    lease = send("PUT", f"bench/leases/{name}", {"If-None-Match": "*"}, LEASE)
    send("GET", f"bench/messages/{name}", {}, b"")
    send("PUT", f"bench/records/2026/11/16/{name}", {"If-None-Match": "*"}, RECORD)
    send("DELETE", f"bench/messages/{name}", {"If-Match": etag}, b"")
    send("DELETE", f"bench/leases/{name}", {"If-Match": lease}, b"")


def _put(send: Send, name: str, _: str) -> None:
    send("PUT", f"bench/messages/{name}", {}, BODY)


def _boto3(endpoint: str) -> Send:
    bucket = fresh_bucket(s3_client(endpoint))
    s3 = client(endpoint)
    calls = {"PUT": s3.put_object, "GET": s3.get_object, "DELETE": s3.delete_object}
    names = {"If-Match": "IfMatch", "If-None-Match": "IfNoneMatch"}

    def send(verb: str, key: str, conditions: dict[str, str], body: bytes) -> str:
        options = {names[name]: value for name, value in conditions.items()} | ({"Body": body} if body else {})
        answer = calls[verb](Bucket=bucket, Key=key, **options)
        if verb == "GET":
            answer["Body"].read()
        return answer.get("ETag", "")

    return send


def _direct(endpoint: str) -> Send:
    bucket = fresh_bucket(s3_client(endpoint))
    connections = DirectStore(bucket, endpoint_url=endpoint)._connections

    def send(verb: str, key: str, conditions: dict[str, str], body: bytes) -> str:
        answer = connections.send(
            verb, f"/{bucket}/{key}", [(name.lower(), value) for name, value in conditions.items()], body
        )
        assert answer.status < 300, answer
        return answer.headers.get("etag", "")

    return send
