"""Our signatures are botocore's, whatever the key, the headers and the query hold."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime
from unittest.mock import patch
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import given, settings
from hypothesis import strategies as st

from s3queue.errors import InvalidRequest
from s3queue.stores.signature import Credentials, sign

AT = datetime(2026, 11, 16, 6, 30, 5, tzinfo=UTC)
HASH = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
values = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
names = st.sampled_from(["if-match", "if-none-match", "content-type", "x-amz-meta-a", "x-amz-meta-long-name"])


def botocores(method: str, path: str, query: str, headers: dict[str, str], token: str | None) -> str:
    """The Authorization header that botocore writes for the same request at the same time."""
    url = f"https://jobs.s3.eu-central-1.amazonaws.com{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method, url, headers=headers | {"X-Amz-Content-SHA256": HASH})
    request.context["client_config"] = None
    signer = S3SigV4Auth(BotocoreCredentials("AKID", "secret", token), "s3", "eu-central-1")
    with (
        patch("botocore.auth.get_current_datetime", lambda **_: AT.replace(tzinfo=None)),
        patch.object(S3SigV4Auth, "payload", lambda *_: HASH),
    ):
        signer.add_auth(request)
    return request.headers["Authorization"]


@settings(max_examples=200, deadline=None)
@given(
    method=st.sampled_from(["PUT", "GET", "HEAD", "DELETE"]),
    key=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    prefix=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=10),
    headers=st.dictionaries(names, values),
    token=st.none() | st.just("a/session+token=="),
)
def test_the_signature_is_botocores(method, key, prefix, headers, token):
    path = "/" + quote(key, safe="/~")
    query = "" if prefix is None else f"list-type=2&max-keys=5&prefix={quote(prefix, safe='~')}"
    asked = {"host": "jobs.s3.eu-central-1.amazonaws.com"} | headers

    signed = sign(
        method,
        path,
        query,
        list(asked.items()),
        HASH,
        Credentials("AKID", "secret", token),
        "eu-central-1",
        calendar.timegm(AT.timetuple()),
    )

    assert dict(signed)["authorization"] == botocores(method, path, query, asked, token)


@pytest.mark.parametrize("value", ["two\r\nx-amz-acl: public-read", "Zoë", "\x7f"])
def test_a_header_that_would_not_arrive_as_it_is_is_refused(value):
    with pytest.raises(InvalidRequest, match="x-amz-meta-a"):
        sign("PUT", "/a", "", [("x-amz-meta-a", value)], HASH, Credentials("AKID", "secret"), "eu-central-1")
