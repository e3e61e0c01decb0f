"""Who shares a fate with whom. docs/design.md 6.15."""

from datetime import timedelta

import pytest

from shadowrelay.model.fate import NOT_SHARED, Fate, Shared, machine_of, what_is_shared
from shadowrelay.model.ids import BoundaryName, DatabaseId, ServerName
from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.values import replace
from shadowrelay.rules.fates import Fates, fate_of

BOOT, CORP = "3c0a9c5e-6f3e-4b0e-9f5e-111122223333", BoundaryName("corp")
EAST, WEST = ServerName("mx1.east"), ServerName("mx1.west")
TOLD = PeerIdentity(EAST, CORP, DatabaseId("d"), 1, 1, 1, timedelta(hours=3))
MINE = Fate(machine_of(BOOT, CORP), ("rack7",))


def test_the_machine_is_a_keyed_hash_so_that_the_boot_id_stays_here() -> None:
    found = machine_of(BOOT, CORP)

    assert 32 == len(found)
    assert set(found) <= set("0123456789abcdef")
    assert found == machine_of(BOOT, CORP)
    assert 3 == len({found, machine_of(BOOT, BoundaryName("other")), machine_of(BOOT[::-1], CORP)})
    assert "" == machine_of("", CORP)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Fate("a"), Fate("a"), ("machine",)),
        (Fate("a"), Fate("b"), ()),
        (Fate(), Fate(), ()),  # nothing is known of either
        (Fate("a", ("rack7", "p1")), Fate("b", ("p1", "rack7")), ("rack7", "p1")),
        (Fate("a", ("rack7",)), Fate("a", ("rack7",)), ("machine", "rack7")),
    ],
)
def test_the_machine_or_any_label_in_common_is_a_shared_fate(one: Fate, other: Fate, expected: tuple[str, ...]) -> None:
    assert expected == what_is_shared(one, other)


@pytest.mark.parametrize(
    ("host", "is_here"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("192.0.2.7", True), ("192.0.2.8", False), (EAST, False)]
)
def test_a_peer_that_tells_no_machine_is_on_another_one_unless_its_address_is_here(host: str, is_here: bool) -> None:
    assert is_here == (fate_of(TOLD, host, MINE, {"192.0.2.7"}) == Fate(MINE.machine))
    told = replace(TOLD, machine="b" * 32, domains=("x",))
    assert Fate("b" * 32, ("x",)) == fate_of(told, host, MINE, {"192.0.2.7"})  # what it tells counts


def test_what_is_shared_follows_what_the_peers_tell() -> None:
    fates = Fates(MINE)

    assert {EAST} == fates.learn(EAST, Fate("b", ("rack7",)))
    assert Shared(is_own=True) == fates.counted.get(EAST, NOT_SHARED)
    assert {EAST, WEST} == fates.learn(WEST, Fate("b"))
    assert (Shared(True, frozenset({WEST})), Shared(False, frozenset({EAST}))) == (
        fates.counted.get(EAST, NOT_SHARED),
        fates.counted.get(WEST, NOT_SHARED),
    )
    assert (("rack7", ""), (EAST,)) == ((fates.in_words(EAST), fates.in_words(WEST)), fates.own_sharers)
    assert set() == fates.learn(WEST, Fate("b"))

    assert {EAST, WEST} == fates.learn(EAST, Fate("c"))
    assert (NOT_SHARED, NOT_SHARED) == tuple(fates.counted.get(server, NOT_SHARED) for server in (EAST, WEST))


def test_where_a_shared_fate_is_redundant_it_is_known_and_does_not_count() -> None:
    fates = Fates(MINE, is_redundant=True)
    fates.learn(EAST, MINE)

    assert (NOT_SHARED, "machine, rack7") == (fates.counted.get(EAST, NOT_SHARED), fates.in_words(EAST))
