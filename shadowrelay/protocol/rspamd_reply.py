"""The reply of rspamd to /checkv2: JSON, of which each part may be anything. docs/reference.md "Filters before the copy".

What does not have the form that rspamd documents is no verdict: the filter has failed then, and its `on_failure` decides. No text of it
becomes a line of a header or a reply unchecked. Actions that would make a message vanish (discard, quarantine) only label it.
"""

import json
import re
from collections.abc import Iterator
from email.header import Header
from typing import Any

from shadowrelay.model.filtering import FilterAction, FilterVerdict, HeaderChanges
from shadowrelay.model.printable import printable
from shadowrelay.model.replies import Reply

REPLY_OCTETS_MAX = 1024 * 1024  # with thousands of symbols
HEADERS_MAX = 100
HEADER_OCTETS_MAX = 64 * 1024  # of all that is added
LINE_OCTETS_MAX = 998  # RFC 5322 2.1.1
NAME = re.compile(r"[!-9;-~]{1,100}")
REPLY_CHARACTERS_MAX = 200
SUBJECT_CHARACTERS_MAX = 900

REJECTED = Reply(550, "5.7.1", "Rejected by the mail filter")
SOFT_REJECTED = Reply(451, "4.7.1", "Try again later: the mail filter asks for it")
GREYLISTED = Reply(451, "4.7.1", "Try again later: greylisted")

_REFUSALS = {"reject": REJECTED, "soft reject": SOFT_REJECTED, "greylist": GREYLISTED}
_LABELLED = frozenset({"add header", "quarantine", "discard"})
_KNOWN = frozenset({"no action", "rewrite subject", "custom", *_REFUSALS, *_LABELLED})
_SPAM = ("X-Spam", "Yes")
_LINE_END = re.compile(r"\r\n|\n|\r")
_NOT_IN_A_HEADER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class BadVerdict(Exception):
    """The reply means nothing. The text says why, without any of it."""


def parse_reply(octets: bytes, name: str) -> FilterVerdict:
    """`name` is that of the filter. Raises: BadVerdict."""
    if len(octets) > REPLY_OCTETS_MAX:
        raise BadVerdict(f"longer than {REPLY_OCTETS_MAX} octets")
    try:
        found = json.loads(octets)
    except (ValueError, RecursionError):
        raise BadVerdict("not JSON") from None
    if not isinstance(found, dict):
        raise BadVerdict("not a JSON object")
    if found.get("error"):
        raise BadVerdict("an error")
    action = found.get("action")
    if not isinstance(action, str) or action not in _KNOWN:
        raise BadVerdict("no action that is known")
    score = _number(found.get("score", 0))
    label = f"{name}:{action.replace(' ', '-')}:{score:.2f}"
    if (refusal := _REFUSALS.get(action)) is not None:
        return FilterVerdict(FilterAction.REFUSE, label, _worded(refusal, found.get("messages")))
    milter = _table(found.get("milter"), "milter")
    removed = tuple(_removed(_table(milter.get("remove_headers"), "remove_headers")))
    added = [*_signatures(found.get("dkim-signature")), *_added(_table(milter.get("add_headers"), "add_headers"))]
    if action in _LABELLED and not any(key.lower() == "x-spam" for key, _ in added):
        added.append(_SPAM)
    subject = _subject(found.get("subject")) if action == "rewrite subject" else None
    _check_size(added)
    return FilterVerdict(FilterAction.ACCEPT, label, changes=HeaderChanges(removed, tuple(added), subject))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e9 <= value <= 1e9:
        raise BadVerdict("a score that is no number")
    return float(value)


def _table(value: Any, name: str) -> dict[str, Any]:
    if value is None or value == []:  # an empty table of Lua
        return {}
    if not isinstance(value, dict):
        raise BadVerdict(f"{name} is not an object")
    return value


def _worded(refusal: Reply, messages: Any) -> Reply:
    """With the text that a module of the filter gave it, as far as it is one."""
    text = messages.get("smtp_message") if isinstance(messages, dict) else None
    if not isinstance(text, str) or not (text := printable(text).encode("ascii", "replace").decode().strip()):
        return refusal
    return refusal._replace(text=text[:REPLY_CHARACTERS_MAX])


def _removed(table: dict[str, Any]) -> Iterator[tuple[str, int]]:
    if len(table) > HEADERS_MAX:
        raise BadVerdict("too many headers")
    for name, which in table.items():
        for each in which if isinstance(which, list) else [which]:
            if isinstance(each, bool) or not isinstance(each, int) or abs(each) > 10_000:
                raise BadVerdict("remove_headers without a number")
            yield _name(name), each


def _added(table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        for each in value if isinstance(value, list) else [value]:
            yield _name(name), _value(each.get("value") if isinstance(each, dict) else each)


def _signatures(value: Any) -> Iterator[tuple[str, str]]:
    if value is None:
        return
    for each in value if isinstance(value, list) else [value]:
        yield "DKIM-Signature", _value(each)


def _name(name: str) -> str:
    if NAME.fullmatch(name) is None:
        raise BadVerdict("a header name that is none")
    return name


def _value(value: Any) -> str:
    """As lines of a header, the later ones indented."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadVerdict("a header value that is no text")
    text = str(value).strip()
    if not text.isascii():
        try:
            text = Header(_LINE_END.sub(" ", text), "utf-8").encode(linesep="\r\n")
        except (UnicodeError, ValueError):  # lone surrogates
            raise BadVerdict("a header value that is no text") from None
    lines = [line for line in _LINE_END.split(text) if line.strip()]
    if any(_NOT_IN_A_HEADER.search(line) for line in lines):
        raise BadVerdict("a header value with control characters")
    return "\r\n".join([lines[0] if lines else "", *(line if line[0] in " \t" else f"\t{line}" for line in lines[1:])])


def _subject(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > SUBJECT_CHARACTERS_MAX:
        raise BadVerdict("rewrite subject without one")
    return _value(value)


def _check_size(added: list[tuple[str, str]]) -> None:
    if len(added) > HEADERS_MAX or sum(len(name) + len(value) + 4 for name, value in added) > HEADER_OCTETS_MAX:
        raise BadVerdict("too many headers")
    for name, value in added:
        if any(len(line) > LINE_OCTETS_MAX for line in f"{name}: {value}".split("\r\n")):
            raise BadVerdict("a header line that is too long")
