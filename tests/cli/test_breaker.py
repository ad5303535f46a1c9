"""The breaker and the rate from the command line: set, shown, forced."""

from __future__ import annotations

from s3queue import Breaker


def test_an_operator_opens_closes_and_leaves_a_breaker_to_itself(cli):
    cli("create", "orders", 'breaker={"failures": 1, "pause_seconds": 30, "on": ["ConnectionError"]}')
    queue = cli.queue()
    assert queue.configure().breaker == Breaker(failures=1, pause=30, on=["ConnectionError"])
    claim = queue.claim(queue.enqueue(b"{}"))
    queue.fail(claim, ConnectionError("down"))

    shown = cli("breaker", "show", "orders", "--json").json
    assert (shown["state"], shown["forced"], shown["error"]) == ("open", False, "ConnectionError: down")
    assert shown["until"] > shown["opened_at"]
    assert "ConnectionError: down" in cli("breaker", "show", "orders").out
    assert "the breaker is open" in cli("queues").out

    assert cli("breaker", "close", "orders", "--json").json["state"] == "closed"
    assert cli("queues", "--json").json[0]["breaker"] == "forced closed"
    assert "stays so" in cli("breaker", "open", "orders").out
    assert "an operator opened the breaker" in cli("queues").out
    assert cli("breaker", "auto", "orders", "--json").json == {
        "queue": "orders",
        "state": "closed",
        "forced": False,
        "failures": 0,
        "error": "",
        "opened_at": None,
        "until": None,
    }


def test_a_rate_is_configured_and_nonsense_is_refused(cli):
    cli("create", "orders", "rate=100/min", "rate_key=folder")
    assert cli.queue().configure().rate == "100/min"
    assert "100/min" in cli("configure", "orders").out
    assert "such as '100/min'" in cli("configure", "orders", "rate=0/min", code=2).err
    assert "breaker must be an object" in cli("configure", "orders", "breaker=5", code=2).err
    assert "cannot be" in cli("configure", "orders", "breaker={", code=2).err
    cli("configure", "orders", "rate=off")
    assert cli.queue().configure().rate is None
