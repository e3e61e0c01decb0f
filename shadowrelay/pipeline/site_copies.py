"""Notices a site that is to have copies and gets none, as it is too far away or broken unseen. docs/reference.md "Far sites".

With PreferRemote a message that got no copy in another site has one in its own, so nobody else complains. Only messages of clients count.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import structlog

from shadowrelay.model.ids import ServerName, SiteName
from shadowrelay.model.settings import Peer, Preference, Settings
from shadowrelay.model.values import dataclass, replace
from shadowrelay.ports import Clock
from shadowrelay.rules.placement import PlacementRule

MISSES_TO_WARN = 10  # messages in a row: fewer may be one short outage
SECONDS_TO_WARN = 300.0  # or so long without a copy, on a node with little mail

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Missed:
    """Units: `since` in `Clock.awake`. Shapes: `count` messages in a row, at least one; `reason` of the last one, may be empty."""

    count: int
    since: float
    reason: str

    def is_to_warn(self, now: float) -> bool:
        """It is no chance any more."""
        return self.count >= MISSES_TO_WARN or now - self.since >= SECONDS_TO_WARN


def choosable(settings: Settings) -> tuple[Peer, ...]:
    """The peers on which the preference may place copies at all."""
    candidates, home = settings.shadow_candidates, settings.server.site
    preference = settings.transport.shadow_message_preference_setting
    if all(peer.site == home for peer in candidates) or preference is Preference.PREFER_REMOTE:
        return candidates
    return tuple([peer for peer in candidates if (peer.site == home) == (preference is Preference.LOCAL_ONLY)])


def missing_sites(
    rule: PlacementRule, sites: Mapping[ServerName, SiteName], stored: Collection[ServerName], failed: Collection[ServerName]
) -> set[SiteName]:
    """The sites that should have a copy of this message and have none: those tried in vain; all other sites, if none of them has one."""
    if rule.preference is Preference.LOCAL_ONLY:
        return set()
    remote = {site for site in sites.values() if site != rule.home}
    reached = {sites[server] for server in stored if server in sites}
    if not reached & remote:
        return remote
    return {sites[server] for server in failed if server in sites and sites[server] != rule.home} - reached


class SiteCopies:
    """The sites without copies, of this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.missed: dict[SiteName, Missed] = {}  # now; changed only here
        self._warned: set[SiteName] = set()

    def placed(self, reached: Iterable[SiteName], missing: Collection[SiteName], reasons: Sequence[str]) -> None:
        """One more message. `reasons` are those of its failed attempts."""
        for site in reached:
            if self.missed.pop(site, None) is not None and site in self._warned:
                self._warned.discard(site)
                _log.warning("site.gets_copies_again", site=site)
        now = self._clock.awake()
        for site in missing:
            before = self.missed.get(site) or Missed(0, now, "")
            reason = reasons[-1] if reasons else before.reason
            self.missed[site] = missed = replace(before, count=before.count + 1, reason=reason)
            if site not in self._warned and missed.is_to_warn(now):
                self._warned.add(site)
                _log.warning(
                    "site.gets_no_copies", site=site, messages=missed.count, seconds=round(now - missed.since), reason=missed.reason
                )

    def without(self) -> dict[SiteName, Missed]:
        """The sites to warn of now."""
        now = self._clock.awake()
        return {site: missed for site, missed in self.missed.items() if missed.is_to_warn(now)}

    def sentences(self) -> list[str]:
        """The same in words."""
        now = self._clock.awake()
        return [
            f"site {site} gets no copies, although it should: {missed.count} messages in {now - missed.since:.0f} s without one"
            f"{f' ({missed.reason})' if missed.reason else ''}"
            for site, missed in self.without().items()
        ]
