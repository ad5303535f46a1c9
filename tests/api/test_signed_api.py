"""`s3queue dashboard --api`: the page from here, the data from the deployed API, signed for with one's own keys."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from botocore.session import Session

from s3queue import Flow
from s3queue.dashboard.api import build
from s3queue.dashboard.resolver import Role
from s3queue.dashboard.server import KEY_HEADER, Server
from s3queue.dashboard.signed_api import SignedApi
from s3queue.errors import AccessDenied, InvalidRequest, Unavailable
from support.api_calls import serving
from support.function_url import REGION, FunctionUrl, function_url
from support.workbench import Workbench

KEY, SECRET = "AKIAOPERATOR", "operators-secret"


@pytest.fixture
def bench() -> Workbench:
    bench = Workbench()
    bench.queue().enqueue("secret words")
    return bench


@pytest.fixture
def deployed(bench: Workbench) -> Iterator[FunctionUrl]:
    with function_url(build(bench.memory), {KEY: SECRET}) as served:
        yield served


def session(secret: str = SECRET, token: str | None = None) -> Session:
    found = Session()
    found.set_credentials(KEY, secret, token)
    return found


def signed(deployed: FunctionUrl, role: Role = "operator", **who: Any) -> SignedApi:
    return SignedApi(deployed.url, session=session(**who), region=REGION, role=role)


def ask(server: Server, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, Any]:
    given = {KEY_HEADER: server.key, "x-s3queue": "1"} | {
        name.replace("_", "-"): text for name, text in headers.items()
    }
    if body is not None:
        given["content-type"] = "application/json"
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    sent = None if body is None else json.dumps(body)
    connection.request(method, path, body=sent, headers={name: text for name, text in given.items() if text})
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    is_json = answer.headers["content-type"] == "application/json"
    return answer.status, json.loads(raw) if is_json else raw.decode()


@pytest.fixture
def server(deployed: FunctionUrl) -> Iterator[Server]:
    with serving(Server(signed(deployed))) as server:
        yield server


def test_the_page_comes_from_here_and_the_data_from_the_api(server: Server, deployed: FunctionUrl) -> None:
    status, page = ask(server, "/", x_s3queue_key="")
    assert (status, "<title>s3queue</title>" in page) == (200, True)
    assert deployed.seen == []
    status, said = ask(server, "/api/queues")
    assert (status, [queue["name"] for queue in said["queues"]]) == (200, ["orders"])
    assert ask(server, "/openapi.json")[1]["info"]["title"] == "s3queue"
    assert len(deployed.seen) == 2


@pytest.mark.parametrize("name", ["plain", "a b", "a+b", "a%2Fb", "../a", "ä&ö=ü", "a//b", "*~'()"])
def test_every_name_is_signed_as_it_is_sent(server: Server, bench: Workbench, name: str) -> None:
    bench.memory.put(f"orders/messages/{name}", b"payload")
    for spelling in (urlencode({"path": f"messages/{name}"}), f"path=messages/{quote(name, safe='')}"):
        status, said = ask(server, f"/api/queues/orders/message?{spelling}&body=true")
        assert (status, said["path"], said["body"]["text"]) == (200, f"messages/{name}", "payload")


def test_changes_are_signed_with_their_body(server: Server, bench: Workbench) -> None:
    status, said = ask(server, "/api/queues/orders/messages", "POST", {"body": {"ä": "ö"}, "dedup_id": "one"})
    assert (status, bench.queue().status(said["path"]).state) == (201, "pending")
    assert ask(server, "/api/queues/orders/pause", "POST") == (200, {"queue": "orders", "paused": True})
    status, said = ask(server, "/api/queues/orders/messages", "POST", "not an object")
    assert (status, said["error"]) == (422, "InvalidRequest")
    assert ask(server, "/api/queues/orders/dead?path=messages/none", "DELETE")[0] == 404


def test_a_flow_and_one_within_it_are_shown_and_cancelled(server: Server, bench: Workbench) -> None:
    outer, inner = Flow(bench.queue(), id="outer"), Flow(bench.queue())
    inner.add("orders", {})
    inner.then("orders", {})
    outer.add(inner)
    outer.start()
    for flow_id in ("outer", "outer.0000"):
        status, found = ask(server, f"/api/flows/{flow_id}")
        assert (status, found["id"]) == (200, flow_id)
    status, found = ask(server, "/api/flows/outer.0000/cancel", "POST")
    assert (status, found["state"]) == (200, "cancelled")
    assert ask(server, "/api/flows/outer")[1]["state"] == "failed"


def test_whoever_has_no_key_or_comes_from_elsewhere_is_not_signed_for(server: Server, deployed: FunctionUrl) -> None:
    at = "/api/queues/orders/pause"
    assert ask(server, "/api/queues", x_s3queue_key="")[0] == 401
    assert ask(server, "/api/queues", host="evil.example")[0] == 421
    for foreign in ({"origin": "https://evil.example"}, {"sec_fetch_site": "cross-site"}, {"x_s3queue": ""}):
        assert ask(server, at, "POST", **foreign)[0] == 403, foreign
    assert deployed.seen == []


def test_neither_key_nor_cookie_leaves_this_machine(server: Server, deployed: FunctionUrl) -> None:
    ask(server, "/api/queues", cookie="other=secret", origin=server.address)
    ((_, target, headers),) = deployed.seen
    assert server.key not in target + json.dumps(headers)
    assert not {"cookie", "origin", KEY_HEADER} & set(headers)


def test_a_session_token_is_sent_and_signed(deployed: FunctionUrl) -> None:
    signed(deployed, token="a-token").check()
    ((_, _, headers),) = deployed.seen
    assert headers["x-amz-security-token"] == "a-token"
    assert "x-amz-security-token" in headers["authorization"]


def test_an_address_is_signed_for_in_its_own_region() -> None:
    app = SignedApi("https://abc.lambda-url.ap-south-1.on.aws/", session=session(), region="eu-west-1")
    assert app._region == "ap-south-1"


@pytest.mark.parametrize(
    "path",
    [
        "/api/../secret",
        "/api/%2e%2e",
        "/api/queues/a.b",
        "/api/flows/..0000",
        "/api/flows/a.0000/../x",
        "/other",
        "/api/",
    ],
)
def test_what_is_no_route_is_not_passed_on(server: Server, deployed: FunctionUrl, path: str) -> None:
    assert ask(server, path)[0] == 404
    assert deployed.seen == []


def test_a_stranger_is_told_what_to_attach(deployed: FunctionUrl) -> None:
    with pytest.raises(AccessDenied, match=r"403 Forbidden; attach the stack's output OperatorPolicy.*eu-west-1"):
        signed(deployed, secret="guessed").check()
    with serving(Server(signed(deployed, secret="guessed"))) as server:
        status, said = ask(server, "/api/queues")
        assert (status, said["error"]) == (403, "AccessDenied")
        assert "OperatorPolicy" in said["message"]


def test_read_only_refuses_here_what_the_address_would_allow(deployed: FunctionUrl) -> None:
    app = signed(deployed, role="reader")
    assert app.check() == "reader"
    with serving(Server(app)) as server:
        ((path,),) = [[row["path"] for row in ask(server, "/api/queues/orders/messages")[1]["messages"]]]
        deployed.seen.clear()
        for truth in ("1", "TRUE", "yes"):
            status, said = ask(server, f"/api/queues/orders/message?path={quote(path)}&body={truth}")
            assert (status, said["error"]) == (403, "ReadOnly")
        assert ask(server, "/api/queues/orders/pause", "POST")[1]["error"] == "ReadOnly"
        assert deployed.seen == []
        assert ask(server, f"/api/queues/orders/message?path={quote(path)}&body=false")[0] == 200


def test_read_only_hides_the_payloads_that_the_address_shows(bench: Workbench, deployed: FunctionUrl) -> None:
    bench.queue().every("15 9 * * 1-5", name="report", body="secret words")
    path = bench.queue().enqueue("x")
    bench.queue().complete(bench.queue().claim(path), {"body": "a result"})
    with serving(Server(signed(deployed, role="reader"))) as server:
        ((seen,),) = ask(server, "/api/queues/orders/schedules")[1].values()
        assert (seen["name"], seen["body"]) == ("report", None)
        assert ask(server, f"/api/queues/orders/message?path={quote(path)}")[1]["result"] == {"body": "a result"}
    with serving(Server(signed(deployed))) as server:
        ((seen,),) = ask(server, "/api/queues/orders/schedules")[1].values()
        assert seen["body"] == "secret words"


def test_a_readers_address_makes_a_readers_page(bench: Workbench) -> None:
    with function_url(build(bench.memory, role="reader"), {KEY: SECRET}) as deployed:
        app = signed(deployed)
        assert (app.check(), app.role) == ("reader", "reader")


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        ((200, {"content-type": "text/html"}, b"<script>"), 422, "InvalidRequest"),
        ((302, {"location": "https://evil.example"}, b""), 422, "InvalidRequest"),
        ((404, {"content-type": "application/json"}, b'{"Message": null}'), 422, "InvalidRequest"),
        ((429, {"content-type": "application/json"}, b'{"message":"Rate Exceeded."}'), 503, "Unavailable"),
        ((502, {"content-type": "application/json"}, b"Internal Server Error"), 503, "Unavailable"),
        (
            (200, {"content-type": "application/json", "x-s3queue-role": "operator", "content-length": "99"}, b"{"),
            503,
            "Unavailable",
        ),
    ],
)
def test_what_the_api_did_not_say_is_not_shown_as_its_answer(
    server: Server, deployed: FunctionUrl, answer: Any, status: int, error: str
) -> None:
    deployed.instead = lambda: answer
    found, said = ask(server, "/api/queues")
    assert (found, said["error"]) == (status, error)


def test_a_change_without_an_answer_may_have_been_made(server: Server, deployed: FunctionUrl) -> None:
    deployed.instead = lambda: (504, {}, b"")
    assert "look first" in ask(server, "/api/queues/orders/pause", "POST")[1]["way_out"]
    assert ask(server, "/api/queues")[1]["way_out"] == "Try again."


def test_nobody_there_is_said_at_the_start() -> None:
    with function_url(None, {}) as gone:
        pass
    with pytest.raises(Unavailable, match="did not answer"):
        signed(gone).check()


@pytest.mark.parametrize(
    "url", ["http://example.com/", "ftp://127.0.0.1", "api", "https://user:word@example.com/", "https://a.b/?x=1"]
)
def test_an_address_that_would_give_something_away_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="Url and ReaderUrl") as refused:
        SignedApi(url, session=session(), region=REGION)
    assert "word" not in str(refused.value)


def test_an_address_with_stray_brackets_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is not a URL"):
        SignedApi("https://[my-api].example.com", session=session(), region=REGION)


def test_without_credentials_it_says_how_to_get_them() -> None:
    with pytest.raises(AccessDenied, match="AWS_PROFILE"):
        SignedApi("https://a.lambda-url.eu-west-1.on.aws", session=_anonymous())


def _anonymous() -> Session:
    found = Session()
    found.get_credentials = lambda *_: None  # type: ignore[method-assign,assignment]
    return found
