"""Forged state and the command: every command answers, or says which object is corrupt."""

from __future__ import annotations

import pytest

from support.forged_documents import KEYS, VICTIM, forgeries, put_forged

COMMANDS = (
    ("queues",),
    ("stats", "orders"),
    ("show", "orders", VICTIM),
    ("workers", "orders"),
    ("runs", "orders"),
    ("locks", "list", "orders"),
    ("dead", "list", "orders"),
    ("configure", "orders"),
)
FEW = 6


@pytest.mark.parametrize("kind", KEYS)
def test_every_command_answers_beside_forged_state(cli, kind):
    store = cli.queue().store
    for forged in forgeries(KEYS[kind][1], seed=3, few=FEW):
        put_forged(store, "orders", kind, forged)
        for command in COMMANDS:
            for more in ((), ("--json",)):
                ran = cli(*command, *more, code=None)
                assert "Traceback" not in ran.err
                assert ran.code == 0 or "orders/" in ran.err, (command, forged, ran)
