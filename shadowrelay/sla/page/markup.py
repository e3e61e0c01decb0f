"""Markup, and the only door through which text becomes it.

A plain string is text and is escaped; only `tag` makes `Html`, which is not. So a forgotten escape cannot happen by omission.
Style attributes are of no use here: the page's Content-Security-Policy refuses them. Colours and sizes are classes.
"""

import html
import re
import unicodedata
from collections.abc import Iterable
from hashlib import blake2b

TEXT_CHARACTERS_MAX = 320  # what is longer must not make the page; an address has at most 320

_VOID = frozenset({"meta", "br", "link", "col"})
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
_ID = re.compile(r"[A-Za-z0-9.-]{1,80}")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # control, direction, surrogates …: they could disguise text


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | None | Iterable["Child"]


def visible(text: str) -> str:
    """The text with what cannot be seen written out: `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(f"\\u{ord(one):04x}" if unicodedata.category(one) in _INVISIBLE else one for one in text)


def _bounded(text: str) -> str:
    """Without the end of what is absurdly long."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}… ({len(text):,} characters)"


def safe(child: Child) -> Html:
    """Children as markup: text is escaped, markup stays, None is nothing, and others are joined."""
    if child is None:
        return Html("")
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return Html(html.escape(visible(_bounded(child))))
    return Html("".join(safe(one) for one in child))


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """One element. Attributes: `class_` is class, `data_x` is data-x; None and False leave it out, True is the bare name.

    Raises: ValueError if the name of the element or of an attribute is none: a bug, as names are never from outside.
    """
    opening = [name]
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if not _NAME.fullmatch(attribute):
            raise ValueError(f"not a name: {attribute!r}")
        if value is True:
            opening.append(attribute)
        elif value is not None and value is not False:
            opening.append(f'{attribute}="{html.escape(visible(str(value)))}"')
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a name: {name!r}")
    return Html(f"<{' '.join(opening)}>" + ("" if name in _VOID else f"{safe(children)}</{name}>"))


def trace_id(message: str) -> str:
    """The id of a message's trace in the page: the message's own where that is harmless, else made from its hash; never two alike."""
    if _ID.fullmatch(message):
        return f"trace-{message}"
    return "trace-_" + blake2b(message.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
