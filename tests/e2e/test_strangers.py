"""Whoever else reaches the local stack's ports: another user of this machine, a page in the developer's browser."""

from __future__ import annotations

import hashlib
import http.client
import io
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from rich.console import Console

from infra.local.home import Home, State
from infra.local.ministack.server import REGION, Server, start
from infra.local.steps import Steps
from support.deployed_stack import DeployedStack

BUCKET = "things"


@pytest.fixture(scope="module", params=[False, True], ids=["without IAM", "with IAM"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """MiniStack behind its guard, with a bucket and nothing deployed."""
    home = Home(tmp_path_factory.mktemp("strangers"))
    started = start(home, Steps(Console(file=io.StringIO())), auth=request.param)
    try:
        client(started.state, "s3", started.state.key, started.state.secret).create_bucket(Bucket=BUCKET)
        yield started
    finally:
        started.stop()


def client(state: State, service: str, key: str, secret: str, **options: Any) -> Any:
    return boto3.client(
        service,
        endpoint_url=state.endpoint,
        region_name=REGION,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        verify=state.certificate or None,
        config=Config(retries={"total_max_attempts": 1}, **options),
    )


def ask(state: State, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", state.port, timeout=20)
    if state.certificate:
        trust = ssl.create_default_context(cafile=state.certificate)
        connection = http.client.HTTPSConnection("127.0.0.1", state.port, timeout=20, context=trust)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def signed(state: State, path: str, **headers: str) -> dict[str, str]:
    """The headers of a GET that the owner of the stack signed, with whatever else it says."""
    given = {"Host": f"127.0.0.1:{state.port}"} | {name.replace("_", "-"): text for name, text in headers.items()}
    request = AWSRequest("GET", f"{state.endpoint}{path}", headers=given)
    S3SigV4Auth(Credentials(state.key, state.secret), "s3", REGION).add_auth(request)
    return dict(request.headers.items())


def is_refused(call: Any) -> bool:
    try:
        call()
    except ClientError as error:
        # In words that the SDK passes on, whatever the service's protocol is.
        return error.response["Error"]["Code"] == "AccessDenied"
    return False


def test_the_keys_that_everybody_knows_open_nothing(server: Server) -> None:
    state = server.state
    known = [("test", "test"), ("000000000000", "test"), (state.key, "test"), (state.key, state.key), ("AKIAX", "x")]
    for key, secret in known:
        for service, call in (
            ("s3", "list_buckets"),
            ("lambda", "list_functions"),
            ("iam", "list_users"),
            ("sts", "get_caller_identity"),
            ("cloudformation", "list_stacks"),
        ):
            assert is_refused(getattr(client(state, service, key, secret), call)), (key, service)
    assert client(state, "sts", state.key, state.secret).get_caller_identity()["Account"]


def test_nobody_is_let_in_without_a_signature(server: Server) -> None:
    state = server.state
    host = {"Host": f"127.0.0.1:{state.port}"}
    for method, path in (
        ("GET", "/"),
        ("GET", f"/{BUCKET}"),
        ("PUT", f"/{BUCKET}/x"),
        ("POST", "/_ministack/reset"),
        ("POST", "/_ministack/config"),
        ("GET", "/_ministack/health"),
        ("POST", "/2015-03-31/functions"),
        ("GET", "/_s3queue/at-work"),
        ("OPTIONS", "/"),
    ):
        assert ask(state, method, path, host) == 403, path
    assert ask(state, "GET", "/_ministack/ready", host) == 200
    assert BUCKET in {found["Name"] for found in client(state, "s3", state.key, state.secret).list_buckets()["Buckets"]}


def test_another_sites_page_is_refused_even_with_a_signature(server: Server) -> None:
    state = server.state
    assert ask(state, "GET", f"/{BUCKET}", signed(state, f"/{BUCKET}")) == 200
    for foreign in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        assert ask(state, "GET", f"/{BUCKET}", signed(state, f"/{BUCKET}", **foreign)) == 403, foreign
    for host in ("evil.example", f"evil.example:{state.port}", f"{BUCKET}.evil.example:{state.port}"):
        assert ask(state, "GET", f"/{BUCKET}", signed(state, f"/{BUCKET}", Host=host)) == 403, host
    assert ask(state, "GET", f"/{BUCKET}", signed(state, f"/{BUCKET}", Host=f"localhost:{state.port}")) == 200


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_a_presigned_address_works_and_cannot_be_changed(server: Server, version: str) -> None:
    state = server.state
    s3 = client(state, "s3", state.key, state.secret, signature_version=version)
    s3.put_object(Bucket=BUCKET, Key="a/ü +x", Body=b"content")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "a/ü +x"}, ExpiresIn=60)
    trust = ssl.create_default_context(cafile=state.certificate) if state.certificate else None
    with urlopen(url, context=trust) as answer:
        assert answer.read() == b"content"
    parts = urlsplit(url)
    host = {"Host": parts.netloc}
    assert ask(state, "GET", f"{parts.path}?{parts.query}", host) == 200
    assert ask(state, "GET", f"{parts.path}y?{parts.query}", host) == 403
    assert ask(state, "DELETE", f"{parts.path}?{parts.query}", host) == 403
    forged = client(state, "s3", state.key, "test", signature_version=version)
    wrong = urlsplit(forged.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "a/ü +x"}))
    assert ask(state, "GET", f"{wrong.path}?{wrong.query}", host) == 403
    late = urlsplit(s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "x"}, ExpiresIn=-5))
    assert ask(state, "GET", f"{late.path}?{late.query}", host) == 403


def test_what_is_remembered_of_a_stack_is_the_owners_alone(server: Server) -> None:
    assert stat.S_IMODE(server.home.state_file.stat().st_mode) == 0o600
    again = server.home.state()
    assert again
    assert (again.key, again.secret, again.emr_token) == (
        server.state.key,
        server.state.secret,
        server.state.emr_token,
    )
    assert len({again.key, again.secret, again.emr_token, "test", ""}) == 5
    command = Path(f"/proc/{server.state.pid}/cmdline")
    if command.exists():
        # Anybody may read a command line.
        said = command.read_bytes().decode()
        assert not [secret for secret in (again.secret, again.emr_token) if secret in said]


def test_a_roles_secret_cannot_be_worked_out(bench: DeployedStack) -> None:
    """MiniStack makes it of the function's name and role alone."""
    configuration = bench.stack.functions[bench.stack.sweeper]
    digest = hashlib.sha256(f"{configuration['FunctionArn']}:{configuration['Role']}".encode()).hexdigest()
    guessed = bench.stack.client_as(
        "s3",
        f"ASIA{digest[:16].upper()}",
        hashlib.sha256(f"secret:{digest}".encode()).hexdigest(),
        hashlib.sha256(f"token:{digest}".encode()).hexdigest(),
    )
    # It has been given out by now: the sweeper has run.
    bench.wake_sweeper()
    assert is_refused(lambda: guessed.list_objects_v2(Bucket=bench.stack.bucket, Prefix="emails/"))


def test_a_stranger_cannot_start_a_job_on_the_deployed_stack(bench: DeployedStack) -> None:
    state = bench.stack.state
    connection = http.client.HTTPConnection("127.0.0.1", state.emr_port, timeout=10)
    headers = {"Host": f"127.0.0.1:{state.emr_port}", "Content-Type": "application/json"}
    connection.request("POST", "/applications/00local0spark0/jobruns", b"{}", headers)
    assert connection.getresponse().status == 403
    connection.close()
