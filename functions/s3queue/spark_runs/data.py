"""Which data beside the queues a Spark run may read and write: the queue `exports` checks it, its role follows."""

from __future__ import annotations

#: What may be read, as prefixes of the bucket. Whoever may enqueue reads it, so history (`archive/`) is not among them;
#: add it here if every producer of `exports` may see every message's outcome. The run's role follows (infra).
SOURCES = ("datasets/",)
#: Where results may go: below it, and nowhere else.
DESTINATION = "analytics/exports/"
