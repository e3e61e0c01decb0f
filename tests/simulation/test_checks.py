"""The checkers of a world, where no world shows them."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.ownership import Claim, CopyNumber, Role
from tests.simulation.checks import Checker

ONE = MessageId("1")
FIRST, SECOND = "10.0.0.1", "10.0.0.2"


def _machine(host: str) -> Any:
    settings = SimpleNamespace(transport=SimpleNamespace(shadow_resubmit_time_span=timedelta(seconds=10)))
    return SimpleNamespace(name=f"mx{host[-1]}", host=host, settings=settings, node=None)


def _number(ownership: int, database: str) -> CopyNumber:
    return CopyNumber(ownership, 1, DatabaseId(database))


@pytest.fixture
def checker() -> Checker:
    checker = Checker(lambda: 100.0, lambda text: None)
    checker.machines = {host: _machine(host) for host in (FIRST, SECOND)}
    checker.claims[FIRST][ONE] = Claim(Role.PRIMARY, _number(1, "a"), 1)
    return checker


@pytest.mark.parametrize(
    ("role", "primary", "expected"), [(Role.PRIMARY, "", True), (Role.SHADOW, "mx1", True), (Role.SHADOW, "mx3", False)]
)
def test_who_has_promoted_counts_like_who_may_promote_soon(checker: Checker, role: Role, primary: str, expected: bool) -> None:
    checker.claims[SECOND][ONE] = Claim(role, _number(2, "b"), 1, primary=ServerName(primary))
    checker._lost[SECOND, ONE], checker._numbered_at[SECOND, ONE] = "mx1", 50.0

    assert expected is checker._could_promote(checker.machines[FIRST], ONE)


def test_two_copies_under_one_number_are_a_violation(checker: Checker) -> None:
    claim = Claim(Role.SHADOW, _number(1, "a"), 1, primary=ServerName("mx1"))
    checker.claims["10.0.0.3"][ONE] = claim

    checker._changed(checker.machines[SECOND], ONE, None, claim)

    assert ["I4"] == [violation.invariant for violation in checker.violations]
