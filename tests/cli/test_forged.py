"""Forged state and the command: every command answers, or says which object is corrupt."""

from __future__ import annotations

import json
from functools import reduce
from operator import getitem

import pytest

from s3queue.cli.commands.tail import Watcher, _line
from s3queue.encoding import encode_metadata
from support.forged_documents import HUGE, KEYS, VICTIM, ForgedStore, forgeries, places, put_forged, with_value
from support.workbench import Workbench

COMMANDS = (
    ("queues",),
    ("stats", "orders"),
    ("size", "orders"),
    ("peek", "orders", "--body"),
    ("show", "orders", VICTIM),
    ("workers", "orders"),
    ("runs", "orders"),
    ("locks", "list", "orders"),
    ("schedule", "list", "orders"),
    ("dead", "list", "orders"),
    ("dead", "errors", "orders"),
    ("configure", "orders"),
    ("sweep", "orders", "--defaults"),
    ("cleanup", "orders", "--yes"),
)
#: Clears the screen, sets the title, rings, overrides the direction of text, moves the cursor by a C1 sequence.
HOSTILE = "\x1b[2J\x1b]0;owned\x07 \u202eevil\x9b31m\r\x08"
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
def test_whatever_text_lies_in_a_document_no_command_lets_it_steer_the_terminal(cli, kind):
    store, real = cli.queue().store, KEYS[kind][1]
    document, hostile = json.loads(real), json.dumps(HOSTILE)
    texts = [at for at in places(document) if isinstance(reduce(getitem, at, document), str)]
    for forged in [with_value(real, at, hostile) for at in texts]:
        put_forged(store, "orders", kind, forged)
        store.put("orders/dead/messages/x", b"x", metadata={"s3queue-error": encode_metadata({"e": HOSTILE})["e"]})
        for command in COMMANDS:
            for more in ((), ("--json",)):
                ran = cli(*command, *more, code=None)
                said = (ran.out + ran.err).replace("\n", "")
                assert not set(HOSTILE) & set("\x1b\x07\u202e\x9b\r\x08") & set(said), (command, forged, said)


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
