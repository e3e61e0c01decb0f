"""Turns values into pages: templates, and the words and shapes that they share. docs/reference.md "Console".

All that they print is escaped. The policy of a page allows only its own style and script, which are files of this package.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from shadowrelay.cluster import lookup, words
from shadowrelay.model.setting_texts import rounded_size

ASSETS = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer some browsers send no Origin, by which forms are checked
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_PACKAGE = "shadowrelay.console"


@cache
def asset(name: str) -> bytes:
    """A file of the package."""
    return files(_PACKAGE).joinpath("assets", name).read_bytes()


@cache
def templates() -> Environment:
    """Each compiled once; a name without a value is an error."""
    environment = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals.update(
        ago=ago, exact=exact, number=number, plural=words.counted, rate=rate, duration=words.duration, size=rounded_size, spark=spark,
        standing=lookup.standing, detail=lookup.detail, recipients_of=lookup.recipients, not_resubmitted=not_resubmitted,
    )  # fmt: skip
    return environment


def page(template: str, values: Mapping[str, object], status: int = 200) -> HTMLResponse:
    """A response with this page."""
    return HTMLResponse(templates().get_template(f"{template}.html.jinja").render(values), status, HEADERS)


def fragment(template: str, values: Mapping[str, object]) -> str:
    """The part of a page that changes while it is open."""
    return templates().get_template(f"{template}.html.jinja").render(values)


def harden(response: Response) -> Response:
    """Every response has the headers of a page."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def is_from_here(request: Request) -> bool:
    """Whether a form was sent by one of our own pages, as far as the browser says."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2].lower() == request.headers.get("host", "").lower()


def exact(at: str | datetime) -> str:
    """ "2026-11-27 12:00:01 UTC"."""
    return f"{_instant(at):%Y-%m-%d %H:%M:%S} UTC"


def ago(at: str | datetime | None, now: datetime, suffix: str = "") -> Markup | str:
    """How long ago, or in how long; the exact instant when the pointer rests on it, and in the text for programs and who hears the page."""
    if at is None:
        return "-"
    instant = _instant(at)
    shown = words.age(instant.isoformat(), now)
    tail = f" {suffix}" if suffix and not shown.startswith("in ") else ""
    return Markup('<time datetime="{}" title="{}">{}{}<span class="away">, {}</span></time>').format(
        instant.isoformat(), exact(instant), shown, tail, exact(instant)
    )


def _instant(at: str | datetime) -> datetime:
    return (datetime.fromisoformat(at) if isinstance(at, str) else at).astimezone(UTC)


def number(value: int | float) -> str:
    """ "1,234,567"."""
    return f"{value:,}"


def not_resubmitted(row: Mapping[str, int]) -> str:
    """What a request to resubmit has found and left alone, and why; empty if nothing."""
    counts = (
        (row["outside_count"], "recipient", "outside the boundary"),
        (row["missing_count"], "message", "whose content is gone or damaged"),
        (row["elsewhere_count"], "message", "of a server that lives and has it itself"),
    )
    return ", ".join(f"{words.counted(count, what)} {why}" for count, what, why in counts if count)


def rate(value: float) -> str:
    """Messages a second; what is nearly zero has no sign."""
    return f"{round(value, 1) + 0.0:g}"


def spark(points: list[int]) -> Markup | str:
    """A line of the last hour, oldest first; empty if nothing is known."""
    if len(points) < 2:
        return ""
    width, height, top = 120, 24, max(*points, 1)
    step = width / (len(points) - 1)
    line = " ".join(f"{index * step:.1f},{height - 2 - (height - 4) * point / top:.1f}" for index, point in enumerate(points))
    text = f"last {len(points)} minutes: from {points[0]:,} to {points[-1]:,} messages, at most {max(points):,}"
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}"><polyline points="{}"/></svg>'
    ).format(width, height, width, height, text, line)


def local_path(text: str) -> str:
    """Where to go on: a path of this site, nothing else."""
    is_path = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and "\\" not in text
    return text if is_path else "/"
