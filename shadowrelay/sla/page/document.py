"""Renders the page: the templates, and the values that they show. docs/sla.md, 8.

The page has one style, one script and a policy that forbids everything else. A page that `sla watch` keeps up to date reloads itself and
shows when it was made, what came late and what fails (docs/sla.md, 7).
"""

from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import cast

from jinja2 import Environment, PackageLoader, StrictUndefined

from shadowrelay.sla.page import labels, wording
from shadowrelay.sla.page.cautions import cautions, dropped_count, gone
from shadowrelay.sla.page.comparison import comparison
from shadowrelay.sla.page.message_lists import causes, longest_exposures, slow, slow_causes, trace_id, traces
from shadowrelay.sla.page.servers import clusters, heat_map, scopes, takeovers, without_figures
from shadowrelay.sla.page.summary_types import Summary
from shadowrelay.sla.page.telling import has_copies, tells, told, unlogged, wants_several
from shadowrelay.sla.page.time_series import exposure, panes
from shadowrelay.sla.page.verdicts import (
    actual,
    alone,
    budgets,
    changed,
    changed_times,
    explained,
    failures,
    headline,
    kind_of,
    lost,
    missed,
    promise,
    sign_of,
    targets,
    unknowable,
    whose,
)

_PACKAGE = "shadowrelay.sla.page"
_VALUES = (  # of the summary; the templates know each by the name of its function
    *(without_figures, headline, whose, alone, gone, unlogged, unknowable, cautions, dropped_count, panes, takeovers, heat_map, scopes),
    *(budgets, changed_times, targets, clusters, comparison, slow, longest_exposures, causes, traces),
)


def render(summary: Mapping[str, object]) -> str:
    """The page as text, to be written as UTF-8.

    Shapes: `summary` is summary.json as docs/sla.md defines it; any list of it may be empty.
    Raises: KeyError or jinja2.UndefinedError if a part is missing.
    """
    known = cast(Summary, summary)
    values = {value.__name__: value(known) for value in _VALUES}
    page = templates().get_template("report.html.jinja")
    return page.render(values, summary=known, style=_resource("page.css"), script=_resource("page.js"))


@cache
def templates() -> Environment:
    """The templates, each compiled once. All that they print is escaped, and a name without a value is an error."""
    environment = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=wording.readable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    functions = (
        *(
            wording.count,
            wording.counted,
            wording.untold,
            wording.shown,
            wording.percent,
            wording.burn,
            wording.pixels,
            wording.duration,
            wording.seconds_between,
        ),
        *(
            wording.milliseconds,
            wording.utc,
            kind_of,
            sign_of,
            actual,
            promise,
            changed,
            failures,
            tells,
            told,
            has_copies,
            wants_several,
            explained,
            lost,
            missed,
            exposure,
            slow_causes,
        ),
        *(trace_id, policy_hash),
    )
    environment.globals.update({function.__name__: function for function in functions}, labels=labels)
    return environment


@cache
def _resource(name: str) -> str:
    return files(_PACKAGE).joinpath(name).read_text(encoding="utf-8")


def policy_hash(text: str) -> str:
    """Of a style or a script, as a Content-Security-Policy names it."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
