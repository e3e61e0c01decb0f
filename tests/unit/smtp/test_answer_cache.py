"""What next hops said of recipients: how long it holds, and that it takes bounded memory."""

import pytest

from shadowrelay.model.replies import Reply
from shadowrelay.smtp.answer_cache import AnswerCache
from shadowrelay.smtp.call_ahead import judged
from shadowrelay.smtp.next_hop_questions import Said
from shadowrelay.smtp.recipient_answers import Existence

OK = Reply(250, "2.1.0", "ok")


def a_cache(**limits: int) -> AnswerCache:
    return AnswerCache(positive_seconds=100, negative_seconds=10, **limits)


def test_a_yes_holds_for_hours_and_a_no_for_minutes() -> None:
    cache = a_cache()
    cache.put("a@x", 0, exists=True)
    cache.put("b@x", 0, exists=False)

    assert [(True, False), (True, None), (True, None), (None, None)] == [
        (cache.get("a@x", now), cache.get("b@x", now)) for now in (9, 10, 99, 100)
    ]


def test_the_last_answer_counts() -> None:
    cache = a_cache()
    cache.put("a@x", 0, exists=True)
    cache.put("a@x", 1, exists=False)

    assert (False, False, 1) == (cache.get("a@x", 2), cache.was_known("a@x", 2), len(cache))


def test_a_yes_that_is_not_sure_holds_no_longer_than_a_no() -> None:
    cache = a_cache()
    cache.put("a@x", 0, exists=True, is_sure=False)

    assert (True, None) == (cache.get("a@x", 9), cache.get("a@x", 10))


def test_who_was_known_is_remembered_for_a_week() -> None:
    cache = a_cache()
    cache.put("a@x", 0, exists=True)

    assert [True, True, False] == [cache.was_known("a@x", now) for now in (50, 600_000, 604_801)]


def test_noes_take_no_place_of_yeses_and_both_are_bounded() -> None:
    cache = a_cache(positive_max=2, negative_max=3)
    for number in range(5):
        cache.put(f"yes{number}@x", 0, exists=True)
    for number in range(50):
        cache.put(f"no{number}@x", 0, exists=False)

    assert 5 == len(cache)
    assert [None, True, True] == [cache.get(f"yes{number}@x", 1) for number in (2, 3, 4)]
    assert [None, False] == [cache.get(f"no{number}@x", 1) for number in (46, 49)]


def test_whoever_is_asked_for_stays() -> None:
    cache = a_cache(positive_max=2)
    cache.put("a@x", 0, exists=True)
    cache.put("b@x", 0, exists=True)
    cache.get("a@x", 1)
    cache.put("c@x", 2, exists=True)

    assert (True, None, True) == (cache.get("a@x", 3), cache.get("b@x", 3), cache.get("c@x", 3))


def test_noes_can_be_forgotten() -> None:
    cache = a_cache()
    cache.put("a@x", 0, exists=True)
    cache.put("b@x", 0, exists=False)
    cache.forget_negative()

    assert (True, None) == (cache.get("a@x", 1), cache.get("b@x", 1))


@pytest.mark.parametrize(
    ("mail", "rcpt", "expected"),
    [
        (OK, Reply(250, "2.1.5", "ok"), Existence.KNOWN),
        (OK, Reply(251, "", "will forward"), Existence.KNOWN),
        (OK, Reply(550, "5.1.1", "no such user"), Existence.UNKNOWN),
        (OK, Reply(550, "5.1.10", "RESOLVER.ADR.RecipientNotFound"), Existence.UNKNOWN),
        (OK, Reply(550, "5.2.1", "mailbox disabled"), Existence.UNKNOWN),
        (OK, Reply(550, "5.4.1", "Recipient address rejected: Access denied"), Existence.UNKNOWN),
        (OK, Reply(550, "", "no such user"), Existence.UNKNOWN),
        (OK, Reply(551, "", "not local"), Existence.UNKNOWN),
        (OK, Reply(553, "", "no"), Existence.UNKNOWN),
        (OK, Reply(552, "5.2.2", "over quota"), Existence.UNDECIDED),
        (OK, Reply(552, "", "over quota"), Existence.UNDECIDED),
        (OK, Reply(550, "5.7.1", "not authorized"), Existence.KNOWN),
        (OK, Reply(554, "", "transaction failed"), Existence.KNOWN),
        (OK, Reply(503, "5.5.1", "bad sequence"), Existence.KNOWN),
        (OK, Reply(450, "4.2.1", "busy"), Existence.UNDECIDED),
        (OK, Reply(451, "4.7.1", "greylisted"), Existence.UNDECIDED),
        (OK, Reply(450, "4.1.1", "lookup failed"), Existence.UNDECIDED),
        (Reply(451, "4.3.0", "later"), Reply(503, "", "need MAIL"), Existence.UNDECIDED),
        (Reply(550, "5.7.1", "no null sender"), Reply(503, "", "need MAIL"), Existence.UNDECIDED),
    ],
)
def test_only_a_refusal_of_the_address_is_a_no(mail: Reply, rcpt: Reply, expected: Existence) -> None:
    assert expected is judged(Said(mail, rcpt)).existence
