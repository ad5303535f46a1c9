"""The API's function: signed requests only, and a role that shows everything and touches little."""

from __future__ import annotations

from infra.permissions import API
from s3queue import Flow, Flows
from s3queue.dashboard.api import build
from s3queue.deployment import Deployment
from s3queue.settings import QueueSettings
from support.api_calls import asking
from support.iam_template import ACCOUNT, REGION, Role
from support.role_store import RoleStore
from support.sample_bucket import working_hour
from support.stack_variant import QUEUES, Synthesize, Variant
from support.workbench import Workbench

IF_ABSENT = {"s3:if-none-match": "*"}


def role(stack: Variant) -> Role:
    return stack.template.role_of("s3queue_api")


def test_its_url_takes_signed_requests_only(stack: Variant) -> None:
    urls = stack.of_type("AWS::Lambda::Url")
    assert len(urls) == 2
    for url in urls:
        assert url["AuthType"] == "AWS_IAM"
        assert "Cors" not in url
    permissions = stack.of_type("AWS::Lambda::Permission")
    assert not [one for one in permissions if one["Action"] == "lambda:InvokeFunctionUrl"], (
        "nobody is let in by default"
    )


def test_it_reads_what_infra_writes(stack: Variant) -> None:
    environment = stack.template.function("s3queue_api")["Environment"]["Variables"]
    assert set(Deployment.from_env(environment).workers) == set(QUEUES)


def test_it_may_cancel_but_takes_no_outcome_back_and_forges_nothing(stack: Variant) -> None:
    """To cancel is to take a lease and to write a record; the bucket's policy makes both conditional."""
    for queue in QUEUES:
        at = f"{stack.bucket}/{queue}"
        # Not `retries`: a reminder is a hint, whoever writes it.
        for kind in ("locks", "workers", "runs", "idempotency", "results", "outbox"):
            for action in ("s3:PutObject", "s3:DeleteObject"):
                assert not role(stack).may(action, f"{at}/{kind}/messages/x", IF_ABSENT), kind
        assert not role(stack).may("s3:DeleteObject", f"{at}/records/messages/x")
        assert not role(stack).may("s3:PutObject", f"{at}/stats.json")
    assert not role(stack).may("lambda:InvokeFunction", f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:s3queue-emails")


def test_a_readers_function_cannot_write_anything(stack: Variant) -> None:
    reader = stack.template.role_of("s3queue_api_reader")
    for queue in QUEUES:
        for kind in (*API, "dead", "delayed", "dedup"):
            for action in ("s3:PutObject", "s3:DeleteObject"):
                assert not reader.may(action, f"{stack.bucket}/{queue}/{kind}/messages/x", IF_ABSENT), (action, kind)
        assert not reader.may("s3:PutObject", f"{stack.bucket}/{queue}/queue.json")
        assert reader.may("s3:GetObject", f"{stack.bucket}/{queue}/records/messages/x")
    assert stack.template.function("s3queue_api_reader")["Handler"] == "handlers.api.read"
    assert stack.template.function("s3queue_api")["Handler"] == "handlers.api.handle"


def test_each_policy_lets_in_by_its_own_url_and_no_other_way(stack: Variant) -> None:
    policies = {
        name: found["PolicyDocument"]["Statement"]
        for name, found in stack.template.of_type("AWS::IAM::ManagedPolicy").items()
        if name.startswith("Api")
    }
    assert len(policies) == 2
    for name, statements in policies.items():
        assert {one["Action"] for one in statements} == {"lambda:InvokeFunctionUrl", "lambda:InvokeFunction"}
        conditions = {one["Action"]: one["Condition"] for one in statements}
        # With an event of one's own making, InvokeFunction alone would pass for any request.
        assert conditions["lambda:InvokeFunction"] == {"Bool": {"lambda:InvokedViaFunctionUrl": "true"}}
        called = {str(one["Resource"]) for one in statements}
        assert len(called) == 1
        assert ("reader" in called.pop()) == ("Reader" in name)


def test_every_request_of_a_reader_is_allowed(stack: Variant) -> None:
    bench = Workbench()
    working_hour(bench)
    store = RoleStore(bench.memory, stack.template.role_of("s3queue_api_reader"), stack.bucket)
    ask = asking(build(store, defined={"emails": QueueSettings()}, discover=False, role="reader"))
    at = "/api/queues/emails"
    letters = ask("GET", f"{at}/dead").body["letters"]
    said = [
        ask("GET", "/api/queues"),
        *(ask("GET", f"{at}{rest}") for rest in ("", "/stats", "/flow", "/stuck", "/workers", "/runs", "/dead/errors")),
        *(
            ask("GET", f"{at}/messages", query={"state": state})
            for state in ("pending", "delayed", "processing", "waiting", "completed")
        ),
        ask("GET", f"{at}/message", query={"path": letters[0]["path"]}),
        ask("GET", "/api/statistics"),
    ]
    assert store.refused == []
    assert {answer.status for answer in said} == {200}


def test_it_sees_no_more_of_the_bucket_than_queues_and_flows(stack: Variant) -> None:
    assert role(stack).may_list(stack.bucket, "emails/dead/")
    assert role(stack).may_list(stack.bucket, "flows/")
    for prefix in ("", "archive/", "analytics/", None):
        assert not role(stack).may_list(stack.bucket, prefix)


def test_every_request_of_the_api_is_allowed(stack: Variant) -> None:
    bench = Workbench()
    working_hour(bench)
    bench.queue("emails").enqueue("x", delay=60)
    bench.queue("emails").claim_next()
    bench.memory.put("emails/runs/one.json", b"{}")
    store = RoleStore(bench.memory, role(stack), stack.bucket)
    ask = asking(build(store, defined={"emails": QueueSettings()}, discover=False))
    at = "/api/queues/emails"
    letters = ask("GET", f"{at}/dead").body["letters"]
    waiting = [bench.queue("emails").enqueue("x"), bench.queue("emails").enqueue("x", delay=60)]
    held = bench.queue("emails").enqueue("x")
    bench.queue("emails").claim(held)
    said = [
        ask("GET", "/api/queues"),
        *(ask("GET", f"{at}{rest}") for rest in ("", "/stats", "/flow", "/stuck", "/workers", "/runs", "/dead/errors")),
        *(
            ask("GET", f"{at}/messages", query={"state": state})
            for state in ("pending", "delayed", "processing", "waiting", "completed")
        ),
        ask("GET", f"{at}/message", query={"path": letters[0]["path"], "body": 1}),
        ask("POST", f"{at}/messages", body={"body": "x", "dedup_id": "1"}),
        ask("POST", f"{at}/messages", body={"body": "x", "dedup_id": "2", "dedup_for_seconds": 60}),
        ask("POST", f"{at}/messages", body={"body": "x", "delay_seconds": 60}),
        *(ask("POST", f"{at}/message/cancel", query={"path": path}) for path in waiting),
        ask("POST", f"{at}/message/release", query={"path": held}),
        ask("POST", f"{at}/message/retry", query={"path": held}),
        ask("GET", f"{at}/messages", query={"state": "cancelled"}),
        ask("POST", f"{at}/dead/replay", body={"path": letters[0]["path"]}),
        ask("POST", f"{at}/dead/replay", body={"error_type": "Reject"}),
        ask("DELETE", f"{at}/dead", query={"path": letters[1]["path"]}),
        ask("POST", f"{at}/pause"),
        ask("POST", f"{at}/resume"),
        ask("GET", "/api/statistics"),
    ]
    assert store.refused == []
    assert {answer.status for answer in said} <= {200, 201}


def test_flows_are_shown_to_readers_and_cancelled_by_operators_and_nothing_more(synthesize: Synthesize) -> None:
    """A member that waits, one at work, one that was never stored, a flow within, and a step."""
    stack, bench = synthesize(sends_to={"emails": ("webhooks",)}, flows=["emails"]), Workbench()
    producer = bench.queue("emails")
    for flow_id in ("members", "step", "unstored"):
        flow, within = Flow(producer, id=flow_id), Flow(producer)
        within.add("emails", "x")
        within.then("emails", "x")
        if flow_id == "members":
            flow.add(within)
        flow.add("emails", "x")
        flow.then("webhooks", "x")
        flow.start()
    for node in Flows(bench.memory).show("step").nodes[:1]:
        producer.complete(producer.claim(node.path))
    producer.claim(Flows(bench.memory).show("members").nodes[1].path)
    bench.memory.delete(f"emails/{Flows(bench.memory).show('unstored').nodes[0].path}")

    reader = RoleStore(bench.memory, stack.template.role_of("s3queue_api_reader"), stack.bucket)
    read = asking(build(reader, defined={"emails": QueueSettings()}, discover=False, role="reader"))
    said = [read("GET", "/api/flows"), *(read("GET", f"/api/flows/{id}") for id in ("members", "step", "members.0000"))]
    store = RoleStore(bench.memory, role(stack), stack.bucket)
    ask = asking(build(store, defined={"emails": QueueSettings()}, discover=False))
    said += [ask("POST", f"/api/flows/{flow_id}/cancel") for flow_id in ("members", "step", "unstored")]
    said.append(ask("GET", "/api/flows"))

    assert reader.refused == []
    # The markers are the sweeper's to remove.
    ended = ("members", "members.0000", "step", "unstored")
    assert {*store.refused} == {f"s3:DeleteObject emails/flows/{flow_id}" for flow_id in ended}
    assert {answer.status for answer in said} == {200}
    assert {flow["state"] for flow in said[-1].body["flows"]} == {"cancelled"}
    for _ in range(2):
        bench.clock.advance(600)
        bench.sweeper(producer).sweep()
    assert bench.keys("emails/flows/") == []
    at = f"{stack.bucket}/flows/f"
    assert role(stack).may("s3:PutObject", f"{at}/decided/0001", IF_ABSENT)
    assert not role(stack).may("s3:PutObject", f"{at}/flow.json", IF_ABSENT)
    assert not role(stack).may("s3:DeleteObject", f"{at}/done/0000.emails")
    assert not role(stack).may("s3:PutObject", f"{stack.bucket}/emails/flows/f")
    assert not stack.template.role_of("s3queue_api_reader").may("s3:PutObject", f"{at}/decided/0001", IF_ABSENT)


def test_without_a_queue_for_flows_the_list_is_empty_and_nothing_can_be_written(stack: Variant) -> None:
    store = RoleStore(Workbench().memory, role(stack), stack.bucket)
    assert asking(build(store, discover=False))("GET", "/api/flows").body == {"flows": [], "next_cursor": None}
    assert not role(stack).may("s3:PutObject", f"{stack.bucket}/flows/f/decided/0001", IF_ABSENT)
