"""`make aws-smoke`: the stack on an AWS account for half an hour: one message down every path, a report, nothing left.

python -m infra.smoke --profile NAME --region REGION [--yes]      on AWS
python -m infra.smoke --local                                     the same on this machine, as a rehearsal
"""
