"""Commands that lead to no mail: what counts, who waits, who goes. docs/security.md "Strangers"."""

import pytest

from shadowrelay.smtp.fruitless_commands import ENDED, IN_PART, SLOW, FruitlessCommands, Pace, pace_of_small_chunks
from shadowrelay.smtp.limits import HOLD_RECIPIENTS_MAX

AT_ONCE, SLOWLY, NOT_AT_ALL = Pace.AT_ONCE, Pace.SLOWLY, Pace.NOT_AT_ALL


@pytest.mark.parametrize("patience", [1, 10])
def test_a_client_waits_after_many_and_goes_after_more_as_its_patience_says(patience: int) -> None:
    counts = [SLOW * patience, SLOW * patience + 1, ENDED * patience, ENDED * patience + 1]

    assert [AT_ONCE, SLOWLY, SLOWLY, NOT_AT_ALL] == [FruitlessCommands(count).pace(patience) for count in counts]


def test_misplaced_commands_and_recipients_of_an_abandoned_transaction_count_in_part() -> None:
    fruitless = FruitlessCommands()

    assert 3 == sum(fruitless.is_misplaced_one_too_many() for _ in range(3 * IN_PART + IN_PART - 1))
    fruitless.abandon(3 * IN_PART - 1)
    assert 2 == fruitless.count


def test_an_old_list_is_slowed_and_gets_through() -> None:
    paces = [FruitlessCommands().refuse_recipient(count, 1, is_one_too_many=False) for count in range(1, HOLD_RECIPIENTS_MAX + 1)]

    assert NOT_AT_ALL not in paces
    assert SLOWLY not in paces[:SLOW]
    assert SLOWLY in paces[SLOW:]


def test_recipients_above_a_limit_are_no_fault_unless_they_do_not_end() -> None:
    fruitless = FruitlessCommands()

    within = [fruitless.refuse_recipient(count, 1, is_one_too_many=True) for count in range(1, HOLD_RECIPIENTS_MAX + 1)]
    assert (0, {AT_ONCE}) == (fruitless.count, set(within))
    beyond = [fruitless.refuse_recipient(HOLD_RECIPIENTS_MAX + count, 1, is_one_too_many=True) for count in range(1, ENDED + 2)]
    assert [AT_ONCE] * SLOW + [SLOWLY] * (ENDED - SLOW) + [NOT_AT_ALL] == beyond


def test_content_in_small_chunks_takes_its_time_and_comes_to_its_end() -> None:
    paces = [pace_of_small_chunks(count) for count in range(1, 3_001)]

    assert {AT_ONCE} == set(paces[:1_000])
    assert 100 == paces.count(SLOWLY)
