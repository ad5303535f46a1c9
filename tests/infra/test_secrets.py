"""Secrets are named in a function's configuration, and lie elsewhere; its role reads exactly those."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.iam_template import ACCOUNT, REGION
from support.stack_variant import KEY, Synthesize

SECRETS = {
    "emails": {
        "EMAIL_SMTP_PASSWORD": "ssm:/s3queue/emails/EMAIL_SMTP_PASSWORD",
        "API_TOKEN": "secretsmanager:shop/api#token",
    },
    "webhooks": {
        "WEBHOOK_SECRET": f"secretsmanager:arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:shop/hooks-AbCdEf"
    },
}
PARAMETER = f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter"
SECRET = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret"


def test_a_worker_reads_its_own_secrets_and_nobody_elses(synthesize: Synthesize) -> None:
    template = synthesize(secrets=SECRETS).template
    emails, webhooks = (template.role_of(f"s3queue-{queue}") for queue in ("emails", "webhooks"))
    own = [
        (emails, "ssm:GetParameter", f"{PARAMETER}/s3queue/emails/EMAIL_SMTP_PASSWORD"),
        (emails, "secretsmanager:GetSecretValue", f"{SECRET}:shop/api-AbCdEf"),
        (webhooks, "secretsmanager:GetSecretValue", f"{SECRET}:shop/hooks-AbCdEf"),
    ]
    others = [template.role_of(name) for name in ("s3queue_sweeper", "s3queue_api", "s3queue-emails-bulk")]
    for role, action, arn in own:
        assert role.may(action, arn)
        for other in (emails, webhooks, *others):
            assert other is role or not other.may(action, arn), other.arn
    assert not emails.may("ssm:GetParameter", f"{PARAMETER}/s3queue/webhooks/WEBHOOK_SECRET")
    assert not emails.may("secretsmanager:GetSecretValue", f"{SECRET}:shop/api-key-AbCdEf")


def test_the_configuration_says_where_they_are_and_not_what(synthesize: Synthesize) -> None:
    template = synthesize(secrets=SECRETS).template
    variables = template.function("s3queue-emails")["Environment"]["Variables"]
    assert json.loads(variables["S3QUEUE_SECRETS"]) == SECRETS["emails"]
    assert not set(SECRETS["emails"]) & set(variables)
    assert "S3QUEUE_SECRETS" not in template.function("s3queue-emails-bulk")["Environment"]["Variables"]


def test_with_a_key_of_ones_own_they_may_be_encrypted_with_it(synthesize: Synthesize) -> None:
    role = synthesize(secrets=SECRETS, kms_key=KEY).template.role_of("s3queue-emails")
    own = f"{PARAMETER}/s3queue/emails/EMAIL_SMTP_PASSWORD"
    assert role.may("kms:Decrypt", KEY, {"kms:EncryptionContext:PARAMETER_ARN": own})
    assert role.may("kms:Decrypt", KEY, {"kms:EncryptionContext:SecretARN": f"{SECRET}:shop/api-AbCdEf"})
    assert not role.may("kms:Decrypt", KEY, {"kms:EncryptionContext:PARAMETER_ARN": f"{PARAMETER}/other"})


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What the app says when it is built in a shell with these variables."""

    def said(**shell: str) -> tuple[str, dict[str, Any]]:
        from aws_cdk import App
        from aws_cdk import aws_lambda as lambda_
        from aws_cdk.assertions import Annotations, Match

        import queues
        from infra import app
        from infra.synthesized import read

        (tmp_path / "handlers.py").touch()
        monkeypatch.setattr(app, "package", lambda _: lambda_.Code.from_asset(str(tmp_path)))
        # Spark's packages take a minute, and say nothing here.
        monkeypatch.setattr(app, "_spark", lambda *_: None)
        for name in (name for queue in queues.load() for name in queues.environment(queue)):
            monkeypatch.delenv(name, raising=False)
        for name, value in shell.items():
            monkeypatch.setenv(name, value)
        built = App()
        stack = app.build(built)
        warnings = Annotations.from_stack(stack).find_warning("*", Match.any_value())
        resources = read(Path(built.synth().directory) / stack.template_file).resources.values()
        functions = [one["Properties"] for one in resources if one["Type"] == "AWS::Lambda::Function"]
        found = {one.get("FunctionName"): one for one in functions}
        return "\n".join(str(warning.entry.data) for warning in warnings), found

    return said


def test_a_shell_without_a_variable_is_told_what_that_means(build: Any) -> None:
    said, functions = build(EMAIL_SMTP_HOST="smtp.example")
    assert functions["s3queue-emails"]["Environment"]["Variables"]["EMAIL_SMTP_HOST"] == "smtp.example"
    (line,) = [line for line in said.splitlines() if line.startswith("emails:")]
    assert "EMAIL_SMTP_USER" in line
    assert "even if an earlier deployment set them" in line
    assert "EMAIL_SMTP_HOST" not in line


def test_a_secret_in_the_shell_is_not_deployed_and_that_is_said(build: Any) -> None:
    said, functions = build(EMAIL_SMTP_PASSWORD="hunter2")
    assert "hunter2" not in json.dumps(functions) + said
    assert "aws ssm put-parameter --type SecureString --name /s3queue/emails/EMAIL_SMTP_PASSWORD" in said
    # Whatever the shell has, the reference is the same: no deployment takes the secret away.
    bare = build()[1]["s3queue-emails"]["Environment"]["Variables"]["S3QUEUE_SECRETS"]
    assert bare == functions["s3queue-emails"]["Environment"]["Variables"]["S3QUEUE_SECRETS"]
