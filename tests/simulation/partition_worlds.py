"""What a queue with partitions is like in one schedule: whether it collects, has limits, or no history.  [P9]"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

from s3queue.limits import Breaker
from s3queue.settings import QueueSettings

from .producers import FORMS

RATES = ("2/s", "20/min", "60/min")
#: The starts of a batch's lines are tried elsewhere, and a handler of lists is not told which lines it got.
SINGLE_FORMS = tuple(form for form in FORMS if form not in ("batch", "many"))
#: A queue moves between these while messages lie there.
MOVES = (0, 2, 8)


def draw_settings(settings: QueueSettings, chance: random.Random) -> QueueSettings:
    """The settings of one schedule, each of them now and then."""
    collects, history = chance.random() < 0.3, chance.random() < 0.8 or settings.keep_payload
    rate = chance.choice(RATES) if chance.random() < 0.2 else None
    breaker = Breaker(failures=2, pause=chance.choice((1, 6))) if chance.random() < 0.15 else None
    settings = replace(settings, history=history, rate=rate, breaker=breaker)
    if collects:
        settings = replace(
            settings,
            partitions=max(settings.partitions, 1),
            max_attempts=max(settings.max_attempts, 2),
            collect=chance.choice((2, 3)),
            within=timedelta(seconds=chance.choice((0, 1, 2))),
        )
    return settings


def has_batches(settings: QueueSettings) -> bool:
    return not (settings.collect or settings.rate)
