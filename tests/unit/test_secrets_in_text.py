"""No word of others that quotes a secret, in whatever form, gets into a reason."""

import base64
import json
from urllib.parse import quote, quote_plus

import pytest

from shadowrelay.smtp.secrets_in_text import LEFT_OUT, without
from tests.kit.secrets_shown import forms_of

SECRET = 'sw0rd+fish/Sesame "42"=ü'
TOKEN = "eyJ0eXAiOiJKV1QiLCJub25jZSI6." + "Ab-_9" * 300


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "quoted",
    [
        SECRET,
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        json.dumps(SECRET)[1:-1],
        encoded(SECRET),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        *(encoded(before + SECRET + behind) for before in ("", "a", "ab", "client:", "\0relay\0") for behind in ("", "\x01\x01", "xy")),
        quote(encoded(f"client:{SECRET}"), safe=""),
        *(f"{encoded(f'user=u{before}{chr(1)}auth=Bearer {TOKEN}{chr(1)}{chr(1)}')[:400]}..." for before in ("", "s", "st")),
        TOKEN[:100],
        TOKEN[-100:],
        f"token={TOKEN[5:60]}&x=1",
    ],
)
def test_a_secret_is_left_out_in_whatever_form_others_quote_it(quoted: str) -> None:
    said = without(f"AADSTS7000215: invalid value '{quoted}' of client relay@corp.example", [SECRET, TOKEN])

    assert said.startswith("AADSTS7000215: invalid value '")
    assert said.endswith("of client relay@corp.example")
    assert LEFT_OUT in said
    for secret in (SECRET, TOKEN[:100]):
        for form in (*forms_of(secret), quote(secret, safe="")):
            assert not any(form[start : start + 14] in said for start in range(max(1, len(form) - 14)))


def test_a_short_secret_is_left_out_and_names_stay() -> None:
    assert "no [left out] for relay-account@corp.example" == without(
        "no AHJlbGF5AHB3MQ for relay-account@corp.example", ["pw1"], ["\0relay\0pw1"]
    )
    assert "user relay-account@corp.example" == without("user relay-account@corp.example", ["pw1"], ["\0relay-account@corp.example\0pw1"])
    assert "535 5.7.8 Error: authentication failed" == without("535 5.7.8 Error: authentication failed", ["", "x"])
