"""The servers that one and the same contract runs on, and what each of them is known to do less well than S3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from s3queue.connect import StoreKind, open_store
from s3queue.store import ObjectStore
from s3queue.stores.memory import MemoryStore
from support.s3_servers import fresh_bucket, s3_client


@dataclass(frozen=True)
class Server:
    """A store to test. A weakness is a promise of S3 that this server breaks: its test must fail, and say so if not."""

    name: str
    weaknesses: Mapping[str, str] = field(default_factory=dict)
    #: What speaks to it.
    store: StoreKind = "boto3"


MEMORY = Server("memory", {"http": "a dict has no address"})
MOTO = Server(
    "moto",
    {
        "copy_conditions": "moto ignores the conditions of a COPY",
        "copy_target_conditions": "moto ignores the conditions of a COPY",
        "name:messages/%41": "moto decodes a key twice",
        "name:messages/q?x=1&y=2#z": "moto's COPY and LIST cut a key at its question mark",
        "name:messages/new\nline": "moto routes no newline",
        "after_inside_a_group": "moto leaves out a group that starts before the cursor",
        "key_limit": "moto has no limit for a key",
        "signatures": "moto believes everyone",
    },
)
SEAWEEDFS = Server(
    "seaweedfs",
    {
        "name:messages/../up": "SeaweedFS is a file system: it refuses '..'",
        "name:messages/./dot": "SeaweedFS is a file system: it refuses '.'",
        "name:messages//double": "SeaweedFS is a file system: it joins slashes",
        "name:messages/folder/": "SeaweedFS makes a directory, without a body, of a key with a trailing slash",
        "name:messages/back\\slash": "SeaweedFS turns a backslash into a slash",
        "flat_order": "SeaweedFS walks a tree: 'a/1' comes before 'a-b/1'",
        "key_of_1024_bytes": "SeaweedFS allows 255 bytes between two slashes",
    },
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "promise(name): what the server must be able to do to pass; see Server.weaknesses"
    )


@pytest.fixture(
    params=[MEMORY, MOTO, SEAWEEDFS, replace(MOTO, store="direct"), replace(SEAWEEDFS, store="direct")],
    ids=lambda server: server.name if server is MEMORY else f"{server.name}-{server.store}",
)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.param
    for marker in request.node.iter_markers("promise"):
        if marker.args[0] in found.weaknesses:
            # Strict, by pyproject.toml: a server that has learned it is no longer declared weak.
            request.applymarker(pytest.mark.xfail(reason=found.weaknesses[marker.args[0]]))
    return found


@pytest.fixture
def store(server: Server, request: pytest.FixtureRequest) -> ObjectStore:
    """An empty bucket of this server."""
    if server is MEMORY:
        return MemoryStore()
    endpoint = request.getfixturevalue(f"{server.name}_endpoint")
    bucket = fresh_bucket(s3_client(endpoint))
    return open_store(f"s3://{bucket}", endpoint_url=endpoint, store=server.store)[0]
