"""Chains of groups: handlers that send into groups and shares, whose handlers send on.  [P7] [P9]"""

from __future__ import annotations

import random
from typing import Any

from .sends import SHARED

#: Seeds of this remainder have them.
CHAINED = 16
GROUPS = ("a", "b/c", "d")
PLANS = ("k", "k", "k", "fk", "r")
#: How often what was sent may send on.
DEEPEST = 2


def draw_chain(chance: random.Random, *, shares: bool, depth: int = 0) -> dict[str, Any]:
    """What a script says of its sends: how many, where each of them goes, and what they send themselves."""
    count = chance.choice((1, 2, 2, 3))
    places: list[str | None] = [chance.choice(GROUPS)] * count
    if chance.random() < 0.3:
        places = [chance.choice((*GROUPS, SHARED, None) if shares else (*GROUPS, None)) for _ in range(count)]
    script: dict[str, Any] = {"sends": count, "sent_to": places, "sent_plan": chance.choice(PLANS)}
    more: dict[str, Any] = {"takes": round(chance.random() * chance.choice((0.2, 0.2, 2.0)), 2)}
    if depth < DEEPEST and chance.random() < 0.5:
        more |= draw_chain(chance, shares=shares, depth=depth + 1)
    return script | {"sent_more": more}
