"""Bugs in what producers and operators call: enqueue, replay, configure. The history catches them."""

from __future__ import annotations

from simulation.mutations import Mutation

BUGS = (
    Mutation(
        "an enqueue is repeated blindly after a lost answer",
        "protocol/producer.py",
        "                arrived = self._has_arrived(path, since, None if is_unique else body)\n",
        "                arrived = False\n",
    ),
    Mutation(
        "a lost enqueue is taken for what lay under its name before",
        "protocol/producer.py",
        "        if etag is None or found.etag == etag:\n",
        "        if found:\n",
    ),
    Mutation(
        "a replay is repeated blindly after a lost answer",
        "protocol/dead_letters.py",
        "        except Conflict as conflict:\n            raise self._taken(target) from conflict\n",
        "        except Conflict as conflict:\n            raise self._taken(target) from conflict\n"
        "        except Unavailable:\n            self._put(target, body, metadata, kind)\n",
    ),
    Mutation(
        "a repeated replay runs what has completed since",
        "protocol/dead_letters.py",
        "return record.generation.etag == letter.etag and record.generation.put_at > letter.modified_at",
        "return False",
    ),
    Mutation(
        "the last of two operators wins the whole of queue.json",
        "protocol/overrides.py",
        "                    if_match=etag,\n                    if_absent=etag is None,\n",
        "",
    ),
    Mutation(
        "coroutines are not run",
        "worker/definition.py",
        "return _loop.run(result) if inspect.isawaitable(result) else result",
        "return str(result)",
    ),
)
