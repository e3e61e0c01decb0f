"""Tables from which all figures are counted: messages, copies, takeovers, and each incident. docs/sla.md, 2 to 4.

`evidence` combines plain messages from the first pass with all others from the exact transforms, in the same columns.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.figures.exact import ACKNOWLEDGED, copies, ends, known_until, recipients, timelines
from shadowrelay.sla.figures.exchange import bare_stays, handled
from shadowrelay.sla.figures.first_pass import plain_copies, plain_messages
from shadowrelay.sla.figures.incidents import (
    UNEXPLAINED,
    duplicates,
    exposures,
    exposures_by_message,
    is_exposure_untold,
    losses,
    orphans,
    promotions,
    takeovers,
    with_return,
)
from shadowrelay.sla.figures.log_writers import Told
from shadowrelay.sla.figures.repetitions import SENT_AGAIN, delivered_again, repeated
from shadowrelay.sla.figures.rows import exact_rows, has_logs_of_exchange


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits by which figures are judged. Units: microseconds."""

    now: int
    is_final: bool
    heartbeat_us: int
    span_us: int
    hold_us: int
    expiration_us: int


ALWAYS = (-(2**62), 2**62)  # microseconds


@dataclass(frozen=True, slots=True)
class Evidence:
    """One table per kind, with one line each; `promotions` are RESUBMIT rows; `lines` the exact timelines. `repeated` has also messages
    outside the interval: what is sent again may have been sent before it. Units of `interval`: microseconds."""

    repeated: DataFrame
    messages: DataFrame
    copies: DataFrame
    promotions: DataFrame
    takeovers: DataFrame
    duplicates: DataFrame
    losses: DataFrame
    orphans: DataFrame
    exposures: DataFrame
    lines: DataFrame
    interval: tuple[int, int] = ALWAYS


def evidence(
    seen: DataFrame | None,
    several: DataFrame | None,
    odd: DataFrame,
    events: DataFrame,
    log_ends: Mapping[str, int | None],
    *,
    logs: Mapping[str, str | None],
    covered: Mapping[str, Sequence[tuple[int, int]]],
    told: Told,
    rules: Rules,
    keep: Callable[[Mapping[str, Callable[[], DataFrame]]], dict[str, DataFrame]],
    with_few_rows: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Evidence:
    """Combine `seen` from `first_pass` (None: treat no message as plain) with the `odd` events: all events of the other messages.
    `several`: copies of plain messages with several (`several_copies`), None if there are none.

    Shapes: `log_ends`: last row of each server's log, None if it has none. `logs`: the format of each; `covered`: the times for
    which each is whole; `told`: what those of Exchange say.
    `keep` stores frames under their names and returns the stored frames, so that each is computed once, and plans stay small.
    `with_few_rows` is entered for what reads none but the rows of `odd`.
    """
    rows = keep({"rows": lambda: exact_rows(odd, logs, told)})["rows"]
    has_exchange = has_logs_of_exchange(logs)
    with with_few_rows():
        known = known_until(rows, log_ends, now=rules.now)
        gathered = keep({"gathered": lambda: timelines(rows, known, covered, has_exchange=has_exchange)})["gathered"]
        named = keep(
            {"recipients": lambda: recipients(rows, gathered, now=rules.now, is_final=rules.is_final, expiration_us=rules.expiration_us)}
        )
        lines = keep({"lines": lambda: _with_ends(gathered, named["recipients"])})["lines"]
        at_hops = keep({"handled": lambda: handled(rows)})["handled"] if has_exchange else None
        each = keep(
            {
                "exposures": lambda: exposures(lines, None if at_hops is None else bare_stays(rows, lines, at_hops), now=rules.now),
                "exact_copies": lambda: copies(rows, lines, at_hops),
                "promotions": lambda: promotions(rows, span_us=rules.span_us, heartbeat_us=rules.heartbeat_us),
                "losses": lambda: losses(named["recipients"], lines, log_ends, expiration_us=rules.expiration_us),
                "repeated": lambda: repeated(lines, logs),
            }
        )
    held = each["exact_copies"] if seen is None else plain_copies(seen, several).unionByName(each["exact_copies"])
    hold_us, together_us = rules.hold_us + rules.expiration_us, rules.span_us + rules.heartbeat_us

    def delivered_twice() -> DataFrame:
        again = delivered_again(each["repeated"], named["recipients"], lines)
        return duplicates(named["recipients"], lines, together_us=together_us).unionByName(again)

    with with_few_rows():
        each |= keep(
            {
                "duplicates": delivered_twice,
                # no plain copy is left over, and Spark knows it
                "orphans": lambda: orphans(held, log_ends, known, now=rules.now, is_final=rules.is_final, hold_us=hold_us),
                "taken": lambda: takeovers(each["promotions"], lines.select("message", "done_at")),
            }
        )
        each |= keep({"exact_messages": lambda: exact_messages(lines, exposures_by_message(each["exposures"]), each["duplicates"])})
    each |= keep({"takeovers": lambda: with_return(each["taken"], events)})
    messages = each["exact_messages"] if seen is None else plain_messages(seen, several).unionByName(each["exact_messages"])
    kept: dict[str, Any] = {
        name: each[name] for name in ("repeated", "promotions", "takeovers", "duplicates", "losses", "orphans", "exposures")
    }
    return Evidence(messages=messages, copies=held, lines=lines, **kept)


def _with_ends(gathered: DataFrame, recipients: DataFrame) -> DataFrame:
    """The timelines with `ends`. A message of Exchange without any recipient, as its probes are, is done when it is acknowledged; one that
    Exchange delivered again was not late for that."""
    joined = gathered.join(ends(recipients), on="message", how="left")
    is_for_nobody = F.col("is_exchange") & (F.col("kind") == ACKNOWLEDGED) & (F.coalesce("recipients_count", F.lit(0)) == 0)
    first = F.when(F.col("is_exchange"), F.col("all_delivered_at"))
    return joined.withColumns(
        {
            "done_at": F.coalesce("done_at", F.when(is_for_nobody, F.col("at"))),
            "last_delivery_at": F.coalesce(first, "last_delivery_at"),
        }
    ).drop("all_delivered_at")


def within(found: Evidence, since: int | None, until: int | None) -> Evidence:
    """What belongs to an interval: docs/sla.md, 3. Units: microseconds; None is no limit."""

    def of_interval(table: DataFrame, at: str) -> DataFrame:
        after = F.lit(True) if since is None else F.col(at) >= since
        return table.where(after & (F.lit(True) if until is None else F.col(at) < until))

    messages = of_interval(found.messages, "at")
    named = messages.select("message")
    return replace(
        found,
        interval=(ALWAYS[0] if since is None else since, ALWAYS[1] if until is None else until),
        messages=messages,
        copies=of_interval(found.copies, "at"),
        promotions=of_interval(found.promotions, "at"),
        takeovers=of_interval(found.takeovers, "first_resubmit_at"),
        orphans=of_interval(found.orphans, "at"),
        losses=of_interval(found.losses, "acknowledged_at"),
        duplicates=found.duplicates.join(named, on="message", how="left_semi"),
        exposures=found.exposures.join(named, on="message", how="left_semi"),
    )


def exact_messages(lines: DataFrame, exposed: DataFrame, duplicates: DataFrame) -> DataFrame:
    """One line per message.

    Shapes: `lines` from `timelines` joined with `ends`; `exposed` from `exposures_by_message`; `duplicates` from there.
    """
    of_message = duplicates.groupBy("message").agg(
        F.count(F.when(F.col("cause") == UNEXPLAINED, 1)).alias("unexplained"),
        F.count(F.when(F.col("cause") == SENT_AGAIN, 1)).alias("again"),
    )
    joined = lines.join(exposed, on="message", how="left").join(of_message, on="message", how="left")
    joined = joined.withColumn("duplicated", F.col("duplicated") + F.coalesce("again", F.lit(0)))
    return joined.select(
        "message", "kind", "at", "server", "pair_server", "is_redundant", "copies", "way", "shadow_us", "ack_us", "done_at",
        "last_delivery_at", "first_deferred_at", (~is_exposure_untold()).alias("is_exposure_known"),
        *[_or_none(name) for name in ("recipients_count", "exposure_count", "exposure_us", "exposure_max_us")],
        *[_or_none(name) for name in ("lost", "duplicated", "unexplained")],
    )  # fmt: skip


def _or_none(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(0).cast("long")).alias(name)
