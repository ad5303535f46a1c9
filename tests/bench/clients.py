"""The client: what one S3 request costs this process, and what that makes of a message.

Every figure comes from a fresh process (`python -m bench.clients …` is what runs in it), because botocore, once awscrt
is installed, signs with it, and because CPU is counted for the whole process, awscrt's own threads included.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import distribution, requires
from typing import Any
from urllib.parse import urlsplit

from servers import ACCESS_KEY, REGION, SECRET_KEY, fresh_bucket, s3_client, seaweedfs_server

from .instruments.harness import Bench
from .instruments.scene import BODY, drain, fill, in_threads, queue_at

GOAL = 5.0
CONCURRENCY = 8
#: boto3 as it is installed; with awscrt's signatures and no validation; two that are made for speed; and our own.
CLIENTS = ("boto3", "boto3 tuned", "awscrt", "obstore", "direct")
DISTRIBUTIONS = {"boto3": ("boto3",), "awscrt": ("awscrt",), "obstore": ("obstore",)}
REQUESTS = 400
MESSAGES = 400

#: In a process of its own, for which nothing is imported yet.
IMPORTS = {
    "boto3": "import boto3; boto3.client('s3')",
    "awscrt": "from awscrt import auth, http, io; io.ClientBootstrap.get_or_create_static_default()",
    "obstore": "from obstore.store import S3Store; S3Store('jobs')",
    "direct": "from s3queue.stores.direct import DirectStore; DirectStore('jobs')",
}

Call = Callable[[str], object]


def run(bench: Bench) -> None:
    with bench.part("clients", "The client: CPU of this process") as part, seaweedfs_server() as endpoint:
        _measure_requests(bench, endpoint)
        _measure_messages(bench, endpoint)
        for client in IMPORTS:
            bench.figure(
                f"CPU to import it and make a client, {client}", lambda client=client: _import(client), unit="ms"
            )
        part.raw["zip_mib"] = {name: round(_zipped(*names) / 2**20, 2) for name, names in DISTRIBUTIONS.items()}
        for name, size in part.raw["zip_mib"].items():
            bench.series(f"size in a zip, {name}", [size], unit="MiB")
        bench.note(
            "obstore has no conditional DELETE, so it cannot be a store of s3queue; boto3 and direct are its stores"
        )


def _measure_requests(bench: Bench, endpoint: str) -> None:
    """PUT if absent, GET, DELETE: of obstore, the DELETE without its condition."""
    costs: dict[str, list[float]] = defaultdict(list)
    rates: dict[str, list[float]] = defaultdict(list)
    with bench.console.status("requests"):
        for _ in range(bench.repetitions):
            for client in CLIENTS:
                found = _in_child(client, "requests", endpoint)
                costs[client].append(found["cpu"] * 1000 / found["count"])
                rates[client].append(found["count"] / found["seconds"])
    for client in CLIENTS[1:]:
        pairs = list(zip(costs[client], costs["boto3"], strict=True))
        bench.pair(f"CPU per request, {client}", pairs, "boto3", unit="ms", better="less")
        bench.pair(
            f"requests/s, {client}, {CONCURRENCY} threads",
            list(zip(rates[client], rates["boto3"], strict=True)),
            "boto3",
            unit="/s",
        )


def _measure_messages(bench: Bench, endpoint: str) -> None:
    for job, what in {
        "worker": "CPU per message, pull worker, direct",
        "enqueue": "CPU per message, enqueue_many of 1 per object, direct",
        "enqueue-100": "CPU per message, enqueue_many of 100 per object, direct",
    }.items():
        bench.compare(
            what,
            lambda job=job: _per_message("direct", job, endpoint),
            "boto3",
            lambda job=job: _per_message("boto3", job, endpoint),
            unit="ms",
            better="less",
            goal=None if job == "enqueue-100" else GOAL,
        )


def _per_message(client: str, job: str, endpoint: str) -> float:
    found = _in_child(client, job, endpoint)
    return found["cpu"] * 1000 / found["count"]


def _environment(client: str) -> dict[str, str]:
    return os.environ | {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
        # botocore, where awscrt is installed, signs with it.
        "BOTO_DISABLE_CRT": "true" if client == "boto3" else "false",
    }


def _in_child(client: str, job: str, endpoint: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.clients", client, job, endpoint]
    answer = subprocess.run(command, env=_environment(client), capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{' '.join(command[2:])}: {answer.stderr[-2000:]}")
    return json.loads(answer.stdout.splitlines()[-1])


def _import(client: str) -> float:
    # What every one of them would come on top of is there already.
    began, ended = "import s3queue, time; began = time.process_time()", "print(1000 * (time.process_time() - began))"
    code = f"{began}; {IMPORTS[client]}; {ended}"
    answer = subprocess.run(
        [sys.executable, "-c", code], env=_environment(client), capture_output=True, text=True, check=True
    )
    return float(answer.stdout)


def _zipped(*names: str) -> int:
    """Compressed bytes of these packages and all that they need."""
    wanted, seen = list(names), set[str]()
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        while wanted:
            name = wanted.pop().lower().replace("_", "-")
            if name in seen:
                continue
            seen.add(name)
            for file in distribution(name).files or ():
                if file.suffix != ".pyc" and file.locate().is_file():
                    archive.write(str(file.locate()), str(file))
            wanted += [
                need.split(";")[0].split("<")[0].split(">")[0].split("=")[0].split("!")[0].strip(" (")
                for need in requires(name) or ()
                if "extra ==" not in need and "python_version <" not in need
            ]
    return len(into.getvalue())


# In the child


def _child(client: str, job: str, endpoint: str) -> None:
    if job == "requests":
        calls = _calls(client, endpoint, fresh_bucket(s3_client(endpoint)))
        keys = [f"bench/{number:05}" for number in range(REQUESTS)]
        in_threads(CONCURRENCY, calls[0], [f"warm/{number}" for number in range(CONCURRENCY)])
        _timed(len(calls) * REQUESTS, lambda: [in_threads(CONCURRENCY, call, keys) for call in calls])
    else:
        store = "direct" if client == "direct" else "boto3"
        queue = queue_at(endpoint, fresh_bucket(s3_client(endpoint)), store=store)
        if job == "worker":
            fill(queue, MESSAGES, threads=CONCURRENCY)
            _timed(MESSAGES, lambda: drain(queue, CONCURRENCY))
            return
        per_object = 100 if job == "enqueue-100" else 1
        count = MESSAGES * 2 * per_object
        bodies = [BODY] * count
        queue.enqueue_many(bodies[: 4 * per_object], per_object=per_object)
        _timed(count, lambda: queue.enqueue_many(bodies, per_object=per_object))


def _timed(count: int, work: Callable[[], Any]) -> None:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    _answer(count, time.process_time() - cpu, time.perf_counter() - wall)


def _answer(count: int, cpu: float, wall: float) -> None:
    print(json.dumps({"count": count, "cpu": cpu, "seconds": wall}))


def _calls(client: str, endpoint: str, bucket: str) -> tuple[Call, Call, Call]:
    """PUT if absent, GET, DELETE of one key, in the client's own words."""
    if client == "obstore":
        import obstore
        from obstore.store import S3Store

        store = S3Store(
            bucket,
            endpoint=endpoint,
            region=REGION,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )
        return (
            lambda key: obstore.put(store, key, BODY, mode="create", use_multipart=False),
            lambda key: obstore.get(store, key).bytes(),
            lambda key: obstore.delete(store, key),
        )
    etags: dict[str, str] = {}
    if client in ("awscrt", "direct"):
        send = _awscrt(endpoint) if client == "awscrt" else _direct(endpoint, bucket)

        def put(key: str) -> None:
            etags[key] = send("PUT", f"/{bucket}/{key}", [("if-none-match", "*")], BODY)

        return (
            put,
            lambda key: send("GET", f"/{bucket}/{key}", [], b""),
            lambda key: send("DELETE", f"/{bucket}/{key}", [("if-match", etags[key])], b""),
        )
    import boto3
    from botocore.config import Config

    tuned: dict[str, Any] = {
        "parameter_validation": False,
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "tcp_keepalive": True,
    }
    config = Config(
        s3={"addressing_style": "path"}, max_pool_connections=CONCURRENCY, **(tuned if client == "boto3 tuned" else {})
    )
    s3 = boto3.client("s3", endpoint_url=endpoint, config=config)

    def put_object(key: str) -> None:
        etags[key] = s3.put_object(Bucket=bucket, Key=key, Body=BODY, IfNoneMatch="*")["ETag"]

    return (
        put_object,
        lambda key: s3.get_object(Bucket=bucket, Key=key)["Body"].read(),
        lambda key: s3.delete_object(Bucket=bucket, Key=key, IfMatch=etags[key]),
    )


Send = Callable[[str, str, list[tuple[str, str]], bytes], str]


def _direct(endpoint: str, bucket: str) -> Send:
    from s3queue.stores.direct import DirectStore

    connections = DirectStore(bucket, endpoint_url=endpoint)._connections

    def send(method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> str:
        answer = connections.send(method, path, headers, body)
        assert answer.status < 300, answer
        return answer.headers.get("etag", "")

    return send


def _awscrt(endpoint: str) -> Send:
    """Its HTTP and its signatures, a connection for each thread: the least that one can write with it."""
    from awscrt import auth, http
    from awscrt import io as runtime

    where = urlsplit(endpoint)
    bootstrap = runtime.ClientBootstrap.get_or_create_static_default()
    provider = auth.AwsCredentialsProvider.new_static(ACCESS_KEY, SECRET_KEY)
    own = threading.local()

    def send(method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> str:
        if not hasattr(own, "connection"):
            own.connection = http.HttpClientConnection.new(where.hostname, where.port, bootstrap).result()
        described = [("host", where.netloc), ("content-length", str(len(body))), *headers]
        request = http.HttpRequest(method, path, http.HttpHeaders(described), io.BytesIO(body) if body else None)
        config = auth.AwsSigningConfig(
            credentials_provider=provider,
            region=REGION,
            service="s3",
            use_double_uri_encode=False,
            should_normalize_uri_path=False,
            signed_body_value=hashlib.sha256(body).hexdigest(),
            signed_body_header_type=auth.AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256,
        )
        auth.aws_sign_request(request, config).result()
        found: dict[str, str] = {}

        def on_response(headers: list[tuple[str, str]], **_: Any) -> None:
            found.update((name.lower(), value) for name, value in headers)

        stream = own.connection.request(request, on_response, lambda **_: None)
        stream.activate()
        assert stream.completion_future.result() < 300, path
        return found.get("etag", "")

    return send


if __name__ == "__main__":
    _child(*sys.argv[1:])
