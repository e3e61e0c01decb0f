"""All that the figures are counted from: messages, copies, takeovers, and each duplicate, loss, orphan, exposure. docs/sla.md, 2 to 4."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from shadowrelay.sla.figures.causes import duplicates, losses
from shadowrelay.sla.figures.copies import copies, orphans
from shadowrelay.sla.figures.ends import ends, recipients
from shadowrelay.sla.figures.exposures import exposures, exposures_by_message
from shadowrelay.sla.figures.first_pass import plain_copies, plain_messages
from shadowrelay.sla.figures.messages import exact_messages
from shadowrelay.sla.figures.rows import exact_rows
from shadowrelay.sla.figures.takeovers import promotions, takeovers, with_return
from shadowrelay.sla.figures.timelines import timelines


@dataclass(frozen=True, slots=True)
class Rules:
    """What figures are judged by. Units: microseconds."""

    now: int
    is_final: bool
    heartbeat_us: int
    span_us: int
    hold_us: int
    expiration_us: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Tables with one line for each of what they are named after; `promotions` are RESUBMIT rows; `lines` the exact timelines."""

    messages: DataFrame
    copies: DataFrame
    promotions: DataFrame
    takeovers: DataFrame
    duplicates: DataFrame
    losses: DataFrame
    orphans: DataFrame
    exposures: DataFrame
    lines: DataFrame


def evidence(
    seen: DataFrame | None,
    odd: DataFrame,
    events: DataFrame,
    log_ends: DataFrame,
    *,
    logged_servers: Sequence[str],
    rules: Rules,
    keep: Callable[[Mapping[str, Callable[[], DataFrame]]], dict[str, DataFrame]],
) -> Evidence:
    """From what `first_pass` has `seen` (None: nothing is taken for plain), and the `odd` events: all those of the other messages.

    Shapes: `log_ends`: server, last_at (of its log). `keep` stores frames under their names and gives back what is
    stored: what is used several times is computed once, and plans stay small.
    """
    rows = keep({"rows": lambda: exact_rows(odd, logged_servers)})["rows"]
    gathered = keep({"gathered": lambda: timelines(rows)})["gathered"]
    named = keep(
        {"recipients": lambda: recipients(rows, gathered, now=rules.now, is_final=rules.is_final, expiration_us=rules.expiration_us)}
    )
    lines = keep({"lines": lambda: gathered.join(ends(named["recipients"]), on="message", how="left")})["lines"]
    each = keep(
        {
            "exposures": lambda: exposures(lines, now=rules.now),
            "duplicates": lambda: duplicates(named["recipients"], lines, together_us=rules.span_us + rules.heartbeat_us),
            "exact_copies": lambda: copies(rows, lines),
            "promotions": lambda: promotions(rows, span_us=rules.span_us, heartbeat_us=rules.heartbeat_us),
            "losses": lambda: losses(named["recipients"], lines, log_ends, expiration_us=rules.expiration_us),
        }
    )
    held = each["exact_copies"] if seen is None else plain_copies(seen).unionByName(each["exact_copies"])
    hold_us = rules.hold_us + rules.expiration_us
    each |= keep(
        {
            "exact_messages": lambda: exact_messages(lines, exposures_by_message(each["exposures"]), each["duplicates"]),
            "orphans": lambda: orphans(held, log_ends, now=rules.now, is_final=rules.is_final, hold_us=hold_us),
            "takeovers": lambda: with_return(takeovers(each["promotions"], lines.select("message", "done_at")), events),
        }
    )
    messages = each["exact_messages"] if seen is None else plain_messages(seen).unionByName(each["exact_messages"])
    kept = {name: each[name] for name in ("promotions", "takeovers", "duplicates", "losses", "orphans", "exposures")}
    return Evidence(messages=messages, copies=held, lines=lines, **kept)
