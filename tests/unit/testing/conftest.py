"""The fixtures that others get from the plugin; nearer than those of tests/unit, which have the same names."""

from s3queue.testing.plugin import bucket, clock

__all__ = ["bucket", "clock"]
