"""`python -m s3queue.cli`, where the command itself is not installed."""

from s3queue.cli import main

main()
