"""`python -m s3queue.cli`, where the command itself is not installed."""

from . import main

main()
