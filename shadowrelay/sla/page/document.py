"""The page as a whole: one style, one script, a policy that forbids everything else, and the sections in their order.

A page that `sla watch` keeps up to date reloads itself and says when it was made, what came late and what fails. docs/sla.md, 7.
"""

from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import cast

from shadowrelay.sla.page.inputs import definitions, inputs, not_computable
from shadowrelay.sla.page.markup import Child, Html, counted, duration, instant, minute, tag
from shadowrelay.sla.page.message_lists import lists, traces
from shadowrelay.sla.page.servers import pairs, takeovers
from shadowrelay.sla.page.summary_types import Summary
from shadowrelay.sla.page.time_series import discard_lag, exposure, latency, redundancy
from shadowrelay.sla.page.verdicts import budgets, claim, headline, period, verdicts

RELOAD_SECONDS_MIN = 30  # a reader must be able to read
_CONTENTS = (
    *(
        ("objectives", "Objectives"),
        ("budget", "Error budget"),
        ("redundancy", "Redundancy"),
        ("latency", "Latency"),
        ("exposure", "Exposure"),
    ),
    *(("discard-lag", "Discard lag"), ("takeovers", "Takeovers"), ("servers", "Servers"), ("incidents", "Messages"), ("traces", "Traces")),
    *(("not-computable", "Not computable"), ("input", "Input"), ("definitions", "Definitions")),
)
_SECTIONS = (verdicts, budgets, redundancy, latency, exposure, discard_lag, takeovers, pairs, lists, traces, not_computable, inputs)


def render(summary: Mapping[str, object]) -> str:
    """The page as text, to be written as UTF-8.

    Shapes: `summary` is summary.json as docs/sla.md defines it; any list of it may be empty. Raises: KeyError if a part is missing.
    """
    known = cast(Summary, summary)
    return "<!doctype html>\n" + tag("html", _head(known), tag("body", _body(known)), lang="en") + "\n"


@cache
def _resource(name: str) -> Html:
    return Html(files("shadowrelay.sla.page").joinpath(name).read_text(encoding="utf-8"))


def _hashed(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _head(summary: Summary) -> Html:
    style, script = _resource("page.css"), _resource("page.js")
    policy = f"default-src 'none'; style-src {_hashed(style)}; script-src {_hashed(script)}; base-uri 'none'; form-action 'none'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        reload(summary),
        tag("meta", name="generator", content="shadowrelay sla report"),
        tag("title", f"{claim(summary)[0]} Redundancy report"),
        tag("style", style),
    )


def _body(summary: Summary) -> list[Html]:
    links = [tag("li", tag("a", title, href=f"#{name}")) for name, title in _CONTENTS]
    return [
        tag("a", "Skip to the report", href="#report", class_="skip"),
        tag("header", tag("p", "Shadow redundancy report", class_="kicker"), period(summary), watched(summary)),
        tag(
            "main",
            headline(summary),
            tag("nav", tag("ul", links, role="list"), aria_label="Contents"),
            [section(summary) for section in _SECTIONS],
            definitions(),
            id="report",
            tabindex="-1",
        ),
        tag(
            "footer",
            tag("p", "Made by ", tag("code", "shadowrelay sla report"), " at ", minute(summary["generated_at"]), ". All instants are UTC."),
        ),
        tag("script", _resource("page.js")),
    ]


def reload(summary: Summary) -> Html | None:
    """For the head; None on a page that stays as it is."""
    watch = summary.get("watch")
    if watch is None:
        return None
    return tag("meta", http_equiv="refresh", content=str(max(RELOAD_SECONDS_MIN, round(watch["interval_seconds"]))))


def watched(summary: Summary) -> Html | None:
    """When it was made, what came late, and what does not work."""
    watch = summary.get("watch")
    if watch is None:
        return None
    said: list[Child] = ["Kept up to date by ", tag("code", "sla watch"), ", looking every ", duration(watch["interval_seconds"])]
    said += ["; as of ", instant(watch["updated_at"]), " UTC"]
    if watch["late_rows"]:
        said += ["; ", counted(watch["late_rows"], "row"), " came late (in these figures, not in the live ones)"]
    if watch.get("ahead_rows"):
        said += ["; ", counted(watch["ahead_rows"], "row"), " came ahead of the clock"]
    if watch["failing"]:
        said += ["; not working now: ", ", ".join(sorted(watch["failing"]))]
    return tag("p", *said, ".", class_="period")
