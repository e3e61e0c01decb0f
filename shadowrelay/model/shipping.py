"""What a target of tracking logs may look like, and how it may be shown: passwords and keys are for the library that connects.

Pure text; which libraries exist is `tracking.target`'s business.
"""

import re
from collections.abc import Mapping

LEFT_OUT = "[left out]"

Option = str | bool | int

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+", re.ASCII)
_PASSWORD = re.compile(r"(?<=://)([^/:@]*):([^/]*)@")
_QUERY = re.compile(r"\?.*")
_SECRET_NAME = re.compile(r"(?i)key|secret|token|pass|cred|sas|sign|auth|conn")
_SECRET_LENGTH_MIN = 4  # shorter text is part of too many words to be replaced


def checked_target(target: str) -> str:
    """Empty, an absolute directory or a URL. Raises: ValueError with the remedy, without the value: it may hold a password."""
    if "::" in target:
        raise ValueError('has "::" in it, which would chain stores; name the one place where the files shall lie')
    if target and not target.startswith("/") and _URL.fullmatch(target) is None:
        raise ValueError('is neither a URL nor an absolute directory; write one like "s3://bucket/tracking" or "/srv/tracking"')
    return target


def checked_options(options: object) -> object:
    """A table of text, whole numbers and truth values. Raises: ValueError with the remedy, without the values."""
    if not isinstance(options, Mapping):
        raise ValueError('is not a table; write one like { endpoint_url = "https://store.example" }, in the environment as JSON')
    wrong = [name for name, value in options.items() if not isinstance(value, str | bool | int)]
    if wrong:
        raise ValueError(f"{', '.join(map(str, wrong))}: is neither text, a whole number nor true or false; write it as one of them")
    return options


def shown_target(target: str) -> str:
    """The target without password and query."""
    return _QUERY.sub(f"?{LEFT_OUT}", _PASSWORD.sub(rf"\1:{LEFT_OUT}@", target)) if "://" in target else target


def shown_options(options: Mapping[str, Option]) -> dict[str, Option]:
    """The options; what is named like a secret, or holds a URL with a password, is left out."""
    return {name: LEFT_OUT if _is_secret(name, value) else value for name, value in options.items()}


def without_secrets(text: str, target: str, options: Mapping[str, Option]) -> str:
    """`text` of a library's error, in which no secret of the configuration stands."""
    found = _PASSWORD.search(target)
    secrets = [str(value) for name, value in options.items() if _is_secret(name, value)] + ([found[2]] if found else [])
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SECRET_LENGTH_MIN:
            text = text.replace(secret, LEFT_OUT)
    return text


def _is_secret(name: str, value: Option) -> bool:
    return _SECRET_NAME.search(name) is not None or _PASSWORD.search(str(value)) is not None
