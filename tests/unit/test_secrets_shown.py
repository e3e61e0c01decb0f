"""What looks for secrets in the output of tests finds them: tests/kit/secrets_shown.py."""

import base64
from pathlib import Path

import pytest

from tests.kit import secrets_shown
from tests.kit.secrets_shown import below, shown

TOKEN = "Zm9vYmFyYmF6cXV4-0123456789"
PLAIN = [base64.b64encode(f"{before}\0relay\0{TOKEN}".encode()).decode() for before in ("", "a", "ab")]
IN_FORMS = [TOKEN, f'{{"token": "{TOKEN}"}}', *PLAIN]


@pytest.mark.parametrize("said", IN_FORMS)
@pytest.mark.parametrize(("name", "text"), [
    ("token", f"{TOKEN}\n"), ("node.key", f"-----BEGIN PRIVATE KEY-----\n{TOKEN}\n-----END PRIVATE KEY-----\n"),
    ("client-secret", TOKEN), ("node.toml", f'[[webhooks]]\nsecret = "{TOKEN}"\n'),
])  # fmt: skip
def test_a_secret_in_a_file_is_found_in_a_log_in_whatever_form(name: str, text: str, said: str, tmp_path: Path) -> None:
    place = tmp_path / "a.example"
    place.mkdir()
    (place / name).write_text(text)
    (place / "node.log").write_text(f"something\n{said}\n")

    secrets, logs = below(tmp_path)

    assert {TOKEN} == secrets
    assert shown(secrets, logs)
    assert [] == shown(secrets, ["something else"])


def test_the_secrets_of_played_servers_are_noted_and_words_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets_shown, "noted", set())

    secrets_shown.note("secret", TOKEN)

    assert {TOKEN} == secrets_shown.noted
