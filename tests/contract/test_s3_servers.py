"""The servers that other tests trust keep the parts of S3 that the protocol stands on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from support.s3_servers import HOST, fresh_bucket, s3_client, seaweedfs_server


@pytest.fixture(params=["moto", "seaweedfs"])
def endpoint(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_endpoint")


def refusal(error: pytest.ExceptionInfo[ClientError]) -> int:
    return error.value.response["ResponseMetadata"]["HTTPStatusCode"]


def listens(endpoint: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, urlsplit(endpoint).port)) == 0


def test_what_is_put_can_be_read_and_listed(endpoint):
    client = s3_client(endpoint)
    bucket = fresh_bucket(client)

    for key in ("emails/messages/b", "emails/messages/a", "emails/leases/messages/a"):
        client.put_object(Bucket=bucket, Key=key, Body=key.encode(), Metadata={"from": "test"})

    answer = client.get_object(Bucket=bucket, Key="emails/messages/a")
    assert answer["Body"].read() == b"emails/messages/a"
    assert {name.lower(): value for name, value in answer["Metadata"].items()} == {"from": "test"}
    assert "date" in answer["ResponseMetadata"]["HTTPHeaders"]
    page = client.list_objects_v2(Bucket=bucket, Prefix="emails/messages/")
    assert [found["Key"] for found in page["Contents"]] == ["emails/messages/a", "emails/messages/b"]
    page = client.list_objects_v2(Bucket=bucket, Prefix="emails/", Delimiter="/")
    assert [found["Prefix"] for found in page["CommonPrefixes"]] == ["emails/leases/", "emails/messages/"]


def test_only_the_first_of_two_creations_wins(endpoint):
    client = s3_client(endpoint)
    bucket = fresh_bucket(client)

    client.put_object(Bucket=bucket, Key="lease", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError) as error:
        client.put_object(Bucket=bucket, Key="lease", Body=b"second", IfNoneMatch="*")

    assert refusal(error) == 412
    assert client.get_object(Bucket=bucket, Key="lease")["Body"].read() == b"first"


def test_a_replacement_needs_the_current_etag(endpoint):
    client = s3_client(endpoint)
    bucket = fresh_bucket(client)

    old = client.put_object(Bucket=bucket, Key="lease", Body=b"1")["ETag"]
    client.put_object(Bucket=bucket, Key="lease", Body=b"2", IfMatch=old)
    with pytest.raises(ClientError) as error:
        client.put_object(Bucket=bucket, Key="lease", Body=b"3", IfMatch=old)

    assert refusal(error) == 412
    assert client.get_object(Bucket=bucket, Key="lease")["Body"].read() == b"2"


def test_a_conditional_delete_spares_what_has_changed(endpoint):
    client = s3_client(endpoint)
    bucket = fresh_bucket(client)

    old = client.put_object(Bucket=bucket, Key="lease", Body=b"1")["ETag"]
    new = client.put_object(Bucket=bucket, Key="lease", Body=b"2")["ETag"]
    with pytest.raises(ClientError) as error:
        client.delete_object(Bucket=bucket, Key="lease", IfMatch=old)
    assert refusal(error) == 412

    client.delete_object(Bucket=bucket, Key="lease", IfMatch=new)
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_of_many_racing_creations_exactly_one_wins(endpoint):
    client = s3_client(endpoint)
    bucket = fresh_bucket(client)
    racers = 3  # SeaweedFS makes losers wait a second or two for the key, the longer the more they are
    together = threading.Barrier(racers)

    def create(key: str, racer: int) -> bool:
        together.wait()
        try:
            client.put_object(Bucket=bucket, Key=key, Body=str(racer).encode(), IfNoneMatch="*")
        except ClientError:
            return False
        return True

    with ThreadPoolExecutor(racers) as pool:
        for race in range(5):
            wins = list(pool.map(create, [f"lease-{race}"] * racers, range(racers)))
            assert sum(wins) == 1


def test_moto_is_served_by_exactly_one_thread(moto_endpoint):
    s3_client(moto_endpoint).list_buckets()

    assert len([thread for thread in threading.enumerate() if thread.name.startswith("waitress-")]) == 1


def test_moto_forgets_and_falls_silent_when_it_ends():
    # In a process of its own: moto's state is the whole process's, and other tests use it here.
    script = """
import threading
from support.s3_servers import fresh_bucket, moto_server, s3_client
with moto_server() as endpoint:
    fresh_bucket(s3_client(endpoint))
assert threading.active_count() == 1, threading.enumerate()
with moto_server() as endpoint:
    assert s3_client(endpoint).list_buckets()["Buckets"] == []
"""
    subprocess.run([sys.executable, "-c", script], env=child_environment(), check=True, timeout=60)


def test_a_second_seaweedfs_shares_nothing_and_leaves_nothing_behind(seaweedfs_endpoint):
    bucket = fresh_bucket(s3_client(seaweedfs_endpoint))

    with seaweedfs_server() as second:
        assert s3_client(second).list_buckets()["Buckets"] == []

    port = urlsplit(second).port
    assert not any(listens(f"http://{HOST}:{near}") for near in range(port - 6, port + 2))
    assert not list(Path("/tmp").glob(f"seaweedfs-*-grpc-{port + 1}.sock"))
    s3_client(seaweedfs_endpoint).head_bucket(Bucket=bucket)


@pytest.mark.parametrize("ending", [None, signal.SIGINT, signal.SIGKILL])
def test_a_process_group_ends_with_its_children_however_the_test_run_ends(tmp_path, ending):
    script = f"""
import signal, sys
from support.process_group import process_group
signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background inherits that it is ignored
with process_group(["sh", "-c", "sleep 600 & sleep 600"], folder="/", leftovers=[{str(tmp_path)!r}]):
    print("running", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as run:
        assert run.stdout.readline() == b"running\n"
        if ending:
            run.send_signal(ending)

        # Ends its input; its output ends when the last process that inherited it has ended.
        rest, _ = run.communicate(timeout=20)

    assert rest == b""
    give_up_at = time.monotonic() + 5
    while tmp_path.exists() and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert not tmp_path.exists()


def child_environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
