"""Sites that are far apart, by whole nodes in virtual time: where copies go, after how many round trips. docs/reference.md "Far sites"."""

import asyncio
import gc
from collections.abc import Iterator
from unittest import mock

import pytest

from tests.simulation.far import HERE, THERE, WARM_SECONDS, FarSites, at_once, burst, played, warm

pytestmark = pytest.mark.heavy  # whole worlds with TLS; transports that their kills leave are warnings in whatever test comes later


@pytest.fixture(autouse=True)
def _buried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What killed processes left is collected here, not as a warning in some other test."""
    yield
    with monkeypatch.context() as patch:
        patch.setattr("sys.unraisablehook", lambda unraisable: None)
        for _ in range(2):
            gc.collect()


RTTS = (0.05, 0.1, 0.25, 0.4, 0.6)


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("rtt", RTTS)
def test_a_copy_takes_one_round_trip_also_after_a_long_time_without_mail(rtt: float, has_tls: bool) -> None:
    told = played(rtt, has_tls=has_tls, play=warm).told

    assert [("far", 1.0)] * 4 == [(one.site, one.round_trips) for one in told]


@pytest.mark.parametrize(("has_tls", "round_trips"), [(False, 4.0), (True, 7.0)], ids=["plain", "TLS"])
def test_the_first_message_after_a_start_waits_for_one_session_to_open(has_tls: bool, round_trips: float) -> None:
    """Connection, greeting, EHLO (with STARTTLS: three more) and, in one write with it, the hello. Then the copy."""
    first, *others = played(0.25, has_tls=has_tls, play=at_once).told

    assert ("far", round_trips) == (first.site, first.round_trips)
    assert [("far", 1.0)] * 3 == [(one.site, one.round_trips) for one in others[1:]]
    assert ("far", 2.0) == (others[0].site, others[0].round_trips)  # the session's XQDISCARD goes before it


def test_a_peer_that_does_not_offer_it_is_said_hello_after_its_reply_to_ehlo() -> None:
    """As versions are that do not know EARLY: one round trip more, and nothing else."""
    with mock.patch("shadowrelay.smtp.peer_part.format_keyword", lambda *, hold, track: f"XSHADOW{' HOLD' if hold else ''} FORKS"):
        told = played(0.25, has_tls=True, play=at_once).told

    assert [("far", 8.0), ("far", 2.0), ("far", 1.0)] == [(one.site, one.round_trips) for one in told[:3]]


@pytest.mark.parametrize("rtt", [0.4, 0.6])
def test_a_session_that_opens_too_late_for_its_message_is_kept_for_the_next(rtt: float) -> None:
    told = played(rtt, has_tls=True, play=at_once).told

    assert "far" == told[-1].site
    assert 1.0 == told[-1].round_trips
    assert all(one.seconds < 5.0 for one in told)


def test_messages_that_come_together_share_the_session_that_is_ready() -> None:
    told = played(0.25, has_tls=True, play=burst).told

    assert ["far"] * 10 == [one.site for one in told]
    assert all(one.round_trips <= 5 for one in told)


def test_a_site_too_far_away_is_a_warning_and_no_longer_one_when_it_is_near_again() -> None:
    said: list[tuple[str, ...]] = []

    async def script(world: FarSites) -> None:
        world.rtt = 0.1
        await world.start_all()
        await asyncio.sleep(WARM_SECONDS)
        node = world.machines[HERE].node
        assert node is not None
        await world.message()
        said.append(node._services.readiness.is_ready()[1])
        world.rtt = 8.0
        for _ in range(11):
            await world.message()
            await asyncio.sleep(1.0)
        said.append(node._services.readiness.is_ready()[1])
        world.rtt = 0.1
        for _ in range(10):
            await asyncio.sleep(60.0)
            await world.message()
        said.append(node._services.readiness.is_ready()[1])

    world = played(0.1, has_tls=False, play=script)

    warned = [[text for text in texts if text.startswith("site ")] for texts in said]
    assert [0, 1, 0] == [len(texts) for texts in warned]
    assert f"site {world.machines[THERE].site} gets no copies" in warned[1][0]
    assert (["near"] * 11, "far") == ([one.site for one in world.told[1:12]], world.told[-1].site)
