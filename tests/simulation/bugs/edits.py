"""Bugs in replaying a dead letter with a payload that an operator repaired."""

from __future__ import annotations

from simulation.mutations import Mutation

BUGS = (
    Mutation(
        "a letter goes before its edited message is stored",
        "flow/edited_replay.py",
        "    try:\n        queue.store.put(\n",
        "    delete_letter(queue, found)\n    try:\n        queue.store.put(\n",
    ),
    Mutation(
        "an edited message replaces another one of its name",
        "flow/edited_replay.py",
        "            if_absent=True,\n            metadata=marked,\n",
        "            metadata=marked,\n",
    ),
    Mutation(
        "an edit takes any message of that name for its own",
        "flow/edited_replay.py",
        "        if not _is_same(queue, target, letter, body):\n",
        "        if not queue.store.head(queue.keys.message(target)):\n",
    ),
    Mutation(
        "an edited message has not the id of its letter's replay",
        "flow/edited_replay.py",
        "    marked = with_put_id(own, letter.replay_id)\n    if put_id_of(marked) != letter.replay_id:\n",
        "    marked = own\n    if put_id_of(marked) == letter.replay_id:\n",
    ),
    Mutation(
        "a letter that was replayed before is edited and replayed again",
        "flow/edited_replay.py",
        "    if letters.is_replayed(letter):\n",
        "    if not path:\n",
    ),
    Mutation(
        "a letter is edited in the middle of its burial, and comes back",
        "flow/edited_replay.py",
        "    _check_buried(queue, letter, target)\n",
        "",
    ),
    Mutation(
        "an edit stores the payload that died",
        "flow/edited_replay.py",
        "            queue.keys.message(target),\n            body,\n",
        "            queue.keys.message(target),\n            queue.store.open(found.key).read(),\n",
    ),
)
