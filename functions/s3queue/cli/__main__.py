"""`python -m s3queue.cli`, for environments in which the command itself is not installed."""

from . import main

main()
