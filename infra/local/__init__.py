"""The same stack on this machine: MiniStack stands in for AWS, the real CDK CLI deploys to it.

    python -m infra.local up | down | status | demo | synth

What is installed and written goes under `.local/`, which git ignores; nothing needs Docker, an account or root.
"""
