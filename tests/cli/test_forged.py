"""Forged state and the command: every command answers, or says which object is corrupt."""

from __future__ import annotations

import pytest

from s3queue.cli.commands.tail import Watcher, _line
from support.forged_documents import HUGE, KEYS, VICTIM, ForgedStore, forgeries, put_forged
from support.workbench import Workbench

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


@pytest.mark.parametrize("kind", KEYS)
def test_tail_tells_what_it_can_beside_forged_state(kind):
    bench = Workbench()
    bench.memory = ForgedStore("bench", clock=bench.clock)
    bench.store = bench.memory
    for forged in [HUGE, *forgeries(KEYS[kind][1], seed=9, few=10 * FEW)]:
        queue = bench.queue("orders")
        watcher = Watcher(queue)
        assert watcher.poll() == []
        put_forged(bench.memory, "orders", kind, forged)
        told = watcher.poll()
        bench.memory.delete(f"orders/{VICTIM}")
        told += watcher.poll()
        said = [_line(event, queue.keys).plain for event in told]
        assert any(VICTIM in line for line in said), forged[:300]
        assert all(line.isprintable() for line in said), said
        for entry in bench.memory.list("orders/").objects:
            bench.memory.delete(entry.key)
