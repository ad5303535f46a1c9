"""Bugs in replaying a dead letter with a payload that an operator repaired."""

from __future__ import annotations

from simulation.mutations import Mutation

BUGS = (
    Mutation(
        "a letter goes before its edited message is stored",
        "flow/edited_replay.py",
        "    if place:\n        target, etag = place, ",
        "    delete_letter(queue, found)\n    if place:\n        target, etag = place, ",
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
        "        if etag := etag_if_same(queue, target, letter.replay_id, edited.stream):\n",
        "        if (there := queue.store.head(queue.keys.message(target))) and (etag := there.etag):\n",
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
        "    if ended := letters.replay_outcome(letter):\n",
        "    if ended := None:\n",
    ),
    Mutation(
        "a letter is edited in the middle of its burial, and comes back",
        "flow/edited_replay.py",
        "    _check_buried(queue, letter, place)\n",
        "",
    ),
    Mutation(
        "an edit stores the payload that died",
        "flow/edited_replay.py",
        "            edited.stream,\n            if_absent",
        "            queue.store.open(edited.key).read(),\n            if_absent",
    ),
    Mutation(
        "an edit does not look whether another replay has run just before its PUT",
        "flow/edited_replay.py",
        "    if (ended := letters.replay_outcome(letter)) and ended.generation.etag != etag:\n",
        "    if (ended := letters.replay_outcome(letter)) and not etag:\n",
    ),
    Mutation(
        "a letter of a group is edited although its replay has run",
        "flow/edited_replay.py",
        "    if ended := letters.replay_outcome(letter):\n",
        "    if place and (ended := letters.replay_outcome(letter)):\n",
        more=(
            (
                "flow/edited_replay.py",
                "    if (ended := letters.replay_outcome(letter)) and ended.generation.etag != etag:\n",
                "    if place and (ended := letters.replay_outcome(letter)) and ended.generation.etag != etag:\n",
            ),
        ),
    ),
    Mutation(
        "a letter of a group is edited in the middle of its burial",
        "flow/edited_replay.py",
        "    _check_buried(queue, letter, place)\n",
        "    _check_buried(queue, letter, place or letter.origin)\n",
    ),
    Mutation(
        "each replay of a group's letter has a name of its own",
        "protocol/partition_replay.py",
        "    target = _place(queue, path, found, put_id)\n",
        "    target = end_of_group(queue, path, found)\n",
    ),
    Mutation(
        "the place of a replay in its group is written whatever lies there",
        "protocol/partition_replay.py",
        "if_match=etag, if_absent=not stored)",
        "if_match=etag)",
    ),
    Mutation(
        "an edit of a group's letter takes another's for its own",
        "protocol/partition_replay.py",
        '            if body.read(len(piece)) != piece:\n                return ""\n'
        '        return "" if body.read(1) else found.etag\n',
        "            body.read(len(piece))\n        return found.etag\n",
    ),
)
