"""From evidence to figures of every window and scope. docs/sla.md, 3."""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.figures import cells, percentiles
from shadowrelay.sla.figures.evidence import Evidence
from shadowrelay.sla.figures.first_pass import server_names
from shadowrelay.sla.figures.messages import sent_again
from shadowrelay.sla.figures.scopes import figures


@dataclass(frozen=True, slots=True)
class Within:
    """How long a good one may take. Units: microseconds."""

    shadow_us: int
    delivery_us: int
    exposure_us: int
    lag_us: int


def counted(found: Evidence, sites: DataFrame, logged: DataFrame, *, now: int, within: Within) -> DataFrame:
    """Lines of `scopes.figures`. Shapes: `sites` is small: server, site, boundary; `logged` has the server of each log."""
    messages = cells.placed_messages(found.messages, now=now)
    copies = cells.placed_copies(found.copies, now=now)
    promotions = cells.placed_promotions(found.promotions, now=now)
    taken = cells.placed_promotions(found.takeovers.withColumn("at", F.col("first_resubmit_at")), now=now)
    again = cells.placed(sent_again(found.messages, server_names(logged)), F.col("at"), "server", "server", "pair_server", now=now)
    facts = [
        cells.message_facts(
            messages, shadow_within_us=within.shadow_us, delivery_within_us=within.delivery_us, exposure_within_us=within.exposure_us
        ),
        cells.single_facts(again, "messages_sent_again"),
        cells.copy_facts(copies, lag_within_us=within.lag_us),
        cells.single_facts(cells.placed_copies(found.orphans, now=now), "shadows_orphaned"),
        cells.promotion_facts(promotions),
        cells.single_facts(taken, "promotions"),
    ]
    times = [percentiles.message_times(messages), percentiles.copy_times(copies), percentiles.promotion_times(promotions)]
    return figures(cells.cells(facts), percentiles.histogram(times), promotions, sites)
