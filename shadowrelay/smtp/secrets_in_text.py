"""Leaves secrets out of what others say. docs/reference.md "Login at next hops"

Servers and token endpoints quote what they refuse: as it was, in base64 of something longer (a line of AUTH, a header), as in a URL or in
JSON, and often cut off. So not only each form of a secret is left out, but any word that has a part of one.
"""

import base64
import json
import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote, quote_plus

LEFT_OUT = "[left out]"
SECRET_LENGTH_MIN = 3  # shorter text is in too many words
BASE64_LENGTH_MIN = 8  # of the part of base64 that depends on nothing else
PART_LENGTH = 12  # of a form, that stands in no word by chance
_WORD = re.compile(rf"[A-Za-z0-9+/=_.~%\\-]{{{PART_LENGTH},}}")


def without(text: str, secrets: Sequence[str], lines: Sequence[str] = ()) -> str:
    """`text` of others without these, whole or in part, in any form. `lines`: what was said in base64, with a name that may be told."""
    forms = sorted({form for secret in secrets if secret for form in _forms(secret)}, key=len, reverse=True)
    text = _WORD.sub(lambda word: LEFT_OUT if _has_part(word[0], forms) else word[0], text)
    whole = [base64.b64encode(line.encode(errors="surrogatepass")).decode() for line in lines]
    for form in (*whole, *(line.rstrip("=") for line in whole), *forms):
        text = text.replace(form, LEFT_OUT)
    return text


def _forms(secret: str) -> Iterator[str]:
    if len(secret) >= SECRET_LENGTH_MIN:
        yield from (
            secret,
            quote(secret, safe=""),
            quote_plus(secret),
            json.dumps(secret)[1:-1],
            json.dumps(secret)[1:-1].replace("/", "\\/"),
        )
    octets = secret.encode(errors="surrogatepass")
    whole = base64.b64encode(octets).decode()
    yield from (form for form in (whole, whole.rstrip("=")) if len(form) >= SECRET_LENGTH_MIN)
    for shift, begin in enumerate((0, 2, 3)):  # characters that also depend on what stands before
        text = base64.b64encode(b"\0" * shift + octets).decode()
        inside = text[begin : len(text.rstrip("=")) - bool(text.endswith("="))]
        if len(inside) >= BASE64_LENGTH_MIN:
            yield from (inside, inside.replace("+", "-").replace("/", "_"), quote(inside, safe=""))


def _has_part(word: str, forms: Sequence[str]) -> bool:
    parts = [word[start : start + PART_LENGTH] for start in range(len(word) - PART_LENGTH + 1)]
    return any(part in form for form in forms if len(form) > PART_LENGTH for part in parts)
