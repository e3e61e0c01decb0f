"""The account can fail: what was planted is found. Causes are narrow: one second or one server beside it, and there is none."""

import time
from dataclasses import replace

import pytest

from shadowrelay.lab.account import (
    Cause,
    DeliveryRecord,
    Fault,
    FaultKind,
    FaultTimes,
    RecordState,
    account,
    cause_of,
    explains_repetition,
    has_all_arrived,
    was_made_between,
)
from shadowrelay.lab.traffic import Arrival, Sent, Submission, SubmissionResult
from shadowrelay.smtp.message_ids import new_message_id

TIMES = FaultTimes(span=5.0, heartbeat=1.0, poll=0.25)
EAST, SOUTH, WEST = "mx1.east.example", "mx2.east.example", "mx1.west.example"
ONE, TWO = "user1@corp.example", "user1@branch.example"


def a_sent(*tries: Submission, recipients: tuple[str, ...] = (ONE,)) -> Sent:
    made = list(tries) or [Submission(100.0, EAST, SubmissionResult.ACKNOWLEDGED, "id-1")]
    return Sent(1, "<1@client.example>", recipients, "digest", made)


def an_arrival(at: float = 101.0, client_name: str = EAST, network_id: str = "id-1", recipient: str = ONE) -> Arrival:
    return Arrival(at, recipient, network_id, "<1@client.example>", client_name, False, "digest")


def an_id(at: float) -> str:
    """A network message id that was made then."""
    digits = f"{int(at * 1000):012x}"
    return f"{digits[:8]}-{digits[8:]}-7abc-8def-0123456789ab"


def test_a_message_that_arrived_once_is_delivered_and_good() -> None:
    result = account([a_sent()], [an_arrival()], [], TIMES)

    assert (1, 1, 0, True) == (result.accepted, result.delivered, result.taken_over, result.is_good)


def test_an_acknowledged_message_that_never_arrived_is_lost() -> None:
    result = account([a_sent()], [], [], TIMES)

    assert (["id-1"], 0, False) == (result.lost, result.delivered, result.is_good)


def test_a_message_that_misses_one_of_its_recipients_is_lost() -> None:
    result = account([a_sent(recipients=(ONE, TWO))], [an_arrival()], [], TIMES)

    assert (["id-1"], False) == (result.lost, result.is_good)


def test_what_the_client_sent_again_does_not_stand_for_what_was_acknowledged() -> None:
    result = account([a_sent()], [an_arrival(network_id="id-2")], [], TIMES)

    assert ["id-1"] == result.lost


SENT_AGAIN = a_sent(
    Submission(100.0, EAST, SubmissionResult.NOTHING), Submission(104.0, EAST, SubmissionResult.ACKNOWLEDGED, "id-2"), recipients=(ONE, TWO)
)


def test_a_message_that_was_recognised_as_sent_again_is_delivered() -> None:
    result = account([SENT_AGAIN], [an_arrival(), an_arrival(recipient=TWO)], [], TIMES)

    assert (1, 1, True) == (result.accepted, result.delivered, result.is_good)
    assert has_all_arrived([SENT_AGAIN], [an_arrival(), an_arrival(recipient=TWO)])


@pytest.mark.parametrize(
    ("lost", "other_id"),
    [
        ([], an_id(99.0)),  # in the millisecond in which the try began
        ([], an_id(103.9)),
        (["id-2"], an_id(98.9)),  # of nothing that this client tried
        (["id-2"], an_id(104.1)),
        (["id-2"], "id-1"),  # which says no time
        (["id-2"], ""),
    ],
)
def test_what_was_tried_again_at_once_after_a_451_in_one_session_may_arrive_under_an_id_of_that_try(lost: list[str], other_id: str) -> None:
    """The server that refused it had a copy placed, which another one took over and delivered."""
    sent = a_sent(Submission(104.0, EAST, SubmissionResult.ACKNOWLEDGED, "id-2", began_at=99.0))

    assert lost == account([sent], [an_arrival(network_id=other_id)], [], TIMES).lost


def test_an_id_that_a_node_made_is_of_the_time_at_which_it_made_it() -> None:
    before = time.time()

    assert was_made_between(new_message_id(), before, time.time())


def test_what_was_sent_again_has_to_reach_every_recipient_under_one_of_its_ids() -> None:
    some = [an_arrival(), an_arrival(network_id="id-2")]

    assert ["id-2"] == account([SENT_AGAIN], some, [], TIMES).lost
    assert not has_all_arrived([SENT_AGAIN], some)
    assert has_all_arrived([SENT_AGAIN], [*some, an_arrival(network_id="id-2", recipient=TWO)])


def test_a_try_after_the_acknowledgement_explains_nothing() -> None:
    late = a_sent(Submission(100.0, EAST, SubmissionResult.ACKNOWLEDGED, "id-1"), Submission(104.0, EAST, SubmissionResult.NOTHING))

    assert ["id-1"] == account([late], [an_arrival(network_id="id-2")], [], TIMES).lost


def test_changed_bytes_are_found() -> None:
    result = account([a_sent()], [replace(an_arrival(), own_sha256="another")], [], TIMES)

    assert (["id-1"], False) == (result.changed, result.is_good)


def test_an_arrival_that_nobody_sent_is_a_changed_message() -> None:
    result = account([a_sent()], [an_arrival(), replace(an_arrival(network_id="id-9"), internet_message_id="<?>")], [], TIMES)

    assert (["id-9"], False) == (result.changed, result.is_good)


def test_a_message_that_nobody_was_told_of_may_arrive_or_not() -> None:
    unsure = a_sent(Submission(100.0, EAST, SubmissionResult.NOTHING))

    assert [(0, True), (0, True)] == [
        (result.accepted, result.is_good) for result in (account([unsure], arrived, [], TIMES) for arrived in ([], [an_arrival()]))
    ]


def test_a_duplicate_without_a_fault_is_unexplained() -> None:
    result = account([a_sent()], [an_arrival(101.0), an_arrival(102.0)], [], TIMES)

    assert ([Cause.NONE], False) == ([duplicate.cause for duplicate in result.unexplained], result.is_good)


def test_the_same_message_for_two_recipients_is_no_duplicate() -> None:
    result = account([a_sent(recipients=(ONE, TWO))], [an_arrival(101.0), an_arrival(101.0, recipient=TWO)], [], TIMES)

    assert ([], True) == (result.duplicates, result.is_good)


def test_what_another_server_delivered_was_taken_over() -> None:
    result = account([a_sent()], [an_arrival(110.0, client_name=WEST)], [], TIMES)

    assert (1, 110.0, True) == (result.taken_over, result.last_taken_over_at, result.is_good)


KILLED = Fault(FaultKind.KILL, EAST, 101.2, 103.0)
AWAY = Fault(FaultKind.KILL, EAST, 102.5, 110.0)
WIPED = Fault(FaultKind.WIPE, EAST, 102.2, 104.0)
PAUSED = Fault(FaultKind.PAUSE, WEST, 100.0, 108.0)
CUT = Fault(FaultKind.CUT, EAST, 100.0, 107.0, WEST)
SICK = Fault(FaultKind.DEAD_DISK, EAST, 101.2, 108.0)


@pytest.mark.parametrize(
    ("expected", "fault", "first", "later"),
    [
        (Cause.DIED_BEFORE_RECORD, KILLED, (101.0, EAST), (104.0, EAST)),
        (Cause.NONE, KILLED, (100.0, EAST), (104.0, EAST)),  # long recorded
        (Cause.DIED_BEFORE_RECORD, KILLED, (102.7, EAST), (104.0, EAST)),  # the next hop took it when its sender was dead
        (Cause.NONE, KILLED, (103.1, EAST), (104.0, EAST)),  # it lives again
        (Cause.NONE, replace(KILLED, kind=FaultKind.PAUSE), (102.7, EAST), (108.0, EAST)),  # it will read the reply
        (Cause.NONE, KILLED, (101.0, WEST), (104.0, EAST)),  # another server died
        (Cause.NONE, KILLED, (101.0, EAST), (101.1, WEST)),  # it had not died yet
        (Cause.DIED_BEFORE_RECORD, PAUSED, (105.0, EAST), (108.1, WEST)),  # the final dot was on its way when it stopped
        (Cause.NONE, PAUSED, (105.0, EAST), (110.0, WEST)),
        (Cause.DISK_DESTROYED, WIPED, (101.1, EAST), (105.0, WEST)),
        (Cause.NONE, WIPED, (100.8, EAST), (105.0, WEST)),  # the shadow server had asked since
        (Cause.NONE, replace(WIPED, kind=FaultKind.KILL), (101.1, EAST), (105.0, WEST)),  # its disk is there
        (Cause.CUT_OFF, AWAY, (101.4, EAST), (109.0, WEST)),
        (Cause.NONE, AWAY, (101.0, EAST), (109.0, WEST)),  # was heard of before
        (Cause.NONE, AWAY, (101.4, EAST), (105.0, WEST)),  # the span was not over
        (Cause.NONE, replace(AWAY, ended_at=106.0), (101.4, EAST), (109.0, WEST)),  # never away that long
        (Cause.CUT_OFF, CUT, (106.0, EAST), (106.5, WEST)),
        (Cause.CUT_OFF, CUT, (106.0, WEST), (106.5, EAST)),
        (Cause.NONE, CUT, (106.0, EAST), (106.5, SOUTH)),  # these two were not cut off
        (Cause.NONE, CUT, (106.0, EAST), (106.5, EAST)),
        (Cause.NONE, CUT, (110.0, EAST), (111.0, WEST)),  # long healed
        (Cause.DIED_BEFORE_RECORD, SICK, (103.0, EAST), (107.5, WEST)),  # it took mail to the next hop, and could not record it
        (Cause.DIED_BEFORE_RECORD, SICK, (108.5, EAST), (109.0, EAST)),
        (Cause.NONE, SICK, (98.0, EAST), (107.5, WEST)),  # recorded, and heard of
        (Cause.NONE, SICK, (103.0, WEST), (107.5, EAST)),  # the disk of the one that delivered is well
        (Cause.NONE, SICK, (118.0, EAST), (119.0, WEST)),  # it is well again
        (Cause.NONE, replace(CUT, kind=FaultKind.HALF_CUT), (106.0, EAST), (106.5, WEST)),
        (Cause.NONE, replace(CUT, kind=FaultKind.SLOW), (106.0, EAST), (106.5, WEST)),
        (Cause.NONE, replace(CUT, kind=FaultKind.BREAK), (106.0, EAST), (106.5, WEST)),
    ],
)
def test_a_cause_needs_its_fault_on_the_right_server_at_the_right_time(
    expected: Cause, fault: Fault, first: tuple[float, str], later: tuple[float, str]
) -> None:
    assert expected == cause_of([an_arrival(*later), an_arrival(*first)], [fault], TIMES)


@pytest.mark.parametrize(
    ("expected", "fault", "later"),
    [
        (Cause.DISK_DESTROYED, WIPED, (105.0, WEST)),
        (Cause.NONE, replace(WIPED, kind=FaultKind.KILL), (105.0, WEST)),
        (Cause.DIED_BEFORE_RECORD, PAUSED, (108.1, WEST)),  # the other one's final dot was on its way
    ],
)
def test_who_recorded_a_delivery_did_not_die_before_that(expected: Cause, fault: Fault, later: tuple[float, str]) -> None:
    twice = [an_arrival(101.9, EAST), an_arrival(*later)]

    assert Cause.DIED_BEFORE_RECORD == cause_of(twice, [fault], TIMES)
    assert expected == cause_of(twice, [fault], TIMES, lambda arrival: DeliveryRecord(RecordState.RECORDED))


def test_who_got_no_reply_to_the_final_dot_may_deliver_again_without_any_fault() -> None:
    twice = [an_arrival(101.9, EAST), an_arrival(105.0, EAST)]

    assert Cause.NONE == cause_of(twice, [], TIMES)
    assert Cause.DIED_BEFORE_RECORD == cause_of(twice, [], TIMES, lambda arrival: DeliveryRecord(RecordState.UNANSWERED))


def test_an_attempt_that_began_in_a_cut_may_end_after_it() -> None:
    twice = [an_arrival(110.0, EAST), an_arrival(111.0, WEST)]

    assert Cause.NONE == cause_of(twice, [CUT], TIMES)
    assert Cause.CUT_OFF == cause_of(twice, [CUT], TIMES, lambda arrival: DeliveryRecord(RecordState.RECORDED, 3.5))


def test_two_servers_failed_together() -> None:
    first, later = an_arrival(103.0, EAST), an_arrival(108.0, WEST)
    lost, then = Fault(FaultKind.WIPE, SOUTH, 100.0, 102.0), Fault(FaultKind.KILL, EAST, 104.5, 109.0)
    late = replace(then, began_at=120.0, ended_at=125.0)

    assert [Cause.TWO_FAILED, Cause.NONE, Cause.NONE, Cause.NONE] == [
        cause_of([first, later], faults, TIMES) for faults in ([lost, then], [lost], [then], [lost, late])
    ]


FULL = Fault(FaultKind.FULL, EAST, 100.5, 106.0)


@pytest.mark.parametrize(
    ("expected", "faults", "first", "later"),
    [
        # recorded when there was room again, and burnt a moment later
        (Cause.DISK_DESTROYED, [FULL, replace(WIPED, began_at=106.5, ended_at=108.0)], (101.0, EAST), (110.0, WEST)),
        (Cause.NONE, [FULL, replace(WIPED, began_at=108.5, ended_at=110.0)], (101.0, EAST), (112.0, WEST)),
        (Cause.NONE, [FULL, replace(WIPED, began_at=106.5, ended_at=108.0)], (98.0, EAST), (110.0, WEST)),  # recorded before
        (Cause.TWO_FAILED, [replace(FULL, node=SOUTH), replace(WIPED, began_at=106.5)], (101.0, EAST), (110.0, WEST)),  # the holder's
        (Cause.NONE, [FULL], (101.0, EAST), (110.0, WEST)),  # a full disk alone explains nothing
        (Cause.CUT_OFF, [replace(FULL, ended_at=108.0)], (101.0, EAST), (108.0, WEST)),  # for so long that its node fell silent
        # the shadow server could not record what it heard, and then was cut off
        (Cause.CUT_OFF, [replace(FULL, node=WEST), replace(CUT, began_at=106.2, ended_at=113.0)], (101.0, EAST), (112.5, WEST)),
        (Cause.NONE, [replace(FULL, node=WEST), replace(CUT, began_at=108.0, ended_at=115.0)], (101.0, EAST), (114.5, WEST)),
    ],
)
def test_a_full_disk_delays_what_is_recorded_and_heard(
    expected: Cause, faults: list[Fault], first: tuple[float, str], later: tuple[float, str]
) -> None:
    assert expected == cause_of([an_arrival(*later), an_arrival(*first)], faults, TIMES)


DEAD = Fault(FaultKind.DEAD_DISK, EAST, 100.5, 112.0)


@pytest.mark.parametrize(
    ("expected", "first", "later"),
    [
        (Cause.DIED_BEFORE_RECORD, (101.0, EAST), (110.0, WEST)),  # its row, on another disk, proves no commit
        (Cause.DIED_BEFORE_RECORD, (112.5, EAST), (113.0, WEST)),
        (Cause.NONE, (98.0, EAST), (110.0, WEST)),  # recorded and told before
        (Cause.NONE, (101.0, SOUTH), (110.0, EAST)),  # of another node
        (Cause.CUT_OFF, (113.5, EAST), (114.0, WEST)),  # it was silent for longer than the span
        (Cause.NONE, (115.0, EAST), (116.0, WEST)),
    ],
)
def test_a_node_with_a_dead_disk_records_nothing_and_is_silent(expected: Cause, first: tuple[float, str], later: tuple[float, str]) -> None:
    recorded = DeliveryRecord(RecordState.RECORDED)

    assert expected == cause_of([an_arrival(*later), an_arrival(*first)], [DEAD], TIMES, lambda arrival: recorded)


@pytest.mark.parametrize(
    ("expected", "other"),
    [
        (Cause.TWO_FAILED, replace(CUT, other=SOUTH)),
        (Cause.TWO_FAILED, replace(KILLED, node=SOUTH, began_at=100.0, ended_at=106.0)),
        (Cause.TWO_FAILED, replace(FULL, node=SOUTH)),  # it could not record what it heard
        (Cause.NONE, replace(CUT, node=WEST, other=SOUTH)),  # cut off from somebody else
        (Cause.NONE, replace(CUT, other=SOUTH, began_at=104.5)),  # it had heard before
        (Cause.NONE, replace(CUT, other=SOUTH, ended_at=102.0)),  # it heard after
        (Cause.NONE, replace(CUT, kind=FaultKind.HALF_CUT, other=SOUTH)),
        (Cause.NONE, replace(WIPED, node=SOUTH, began_at=98.0, ended_at=99.0)),
    ],
)
def test_what_burnt_unheard_may_come_back_to_the_same_server_by_two_takeovers(expected: Cause, other: Fault) -> None:
    burnt = replace(WIPED, began_at=105.0, ended_at=107.0)
    twice = [an_arrival(101.5, EAST), an_arrival(120.0, EAST)]

    assert expected == cause_of(twice, [burnt, other], TIMES)


def test_a_third_arrival_needs_a_cause_of_its_own() -> None:
    twice = [an_arrival(101.0, EAST), an_arrival(104.0, EAST)]

    assert Cause.DIED_BEFORE_RECORD == cause_of(twice, [KILLED], TIMES)
    assert Cause.NONE == cause_of([*twice, an_arrival(120.0, EAST)], [KILLED], TIMES)


@pytest.mark.parametrize(
    ("expected", "down"),
    [
        (Cause.CUT_OFF, replace(AWAY, began_at=103.0, ended_at=107.0)),
        (Cause.CUT_OFF, replace(AWAY, began_at=105.0, ended_at=107.0)),  # nobody asked in the moment between
        (Cause.NONE, replace(AWAY, began_at=107.0, ended_at=110.0)),  # there was time to ask
        (Cause.NONE, replace(AWAY, began_at=103.0, ended_at=104.5)),  # together not longer than the span
        (Cause.NONE, replace(AWAY, node=SOUTH, began_at=115.0, ended_at=119.0)),
    ],
)
def test_who_is_cut_off_and_then_down_is_away_all_the_time(expected: Cause, down: Fault) -> None:
    short = replace(CUT, ended_at=104.0)

    assert expected == cause_of([an_arrival(101.0, EAST), an_arrival(106.0, WEST)], [short, down], TIMES)


ACKNOWLEDGED = Submission(103.0, WEST, SubmissionResult.ACKNOWLEDGED, "id-1")
UNANSWERED = Submission(100.0, EAST, SubmissionResult.NOTHING)
REFUSED = Submission(100.0, EAST, SubmissionResult.REFUSED)
STRANGE = {"id-1": an_arrival(104.0, WEST), "id-2": an_arrival(106.0, SOUTH)}
IN_ONE_SESSION = replace(ACKNOWLEDGED, began_at=99.0)  # perhaps after a 451, on which a kept session tries again at once
FIRST_OF_TWO = {"id-1": STRANGE["id-1"], an_id(100.5): an_arrival(106.0, SOUTH, an_id(100.5))}


@pytest.mark.parametrize(
    ("expected", "tries", "firsts", "faults"),
    [
        (True, [UNANSWERED, ACKNOWLEDGED], STRANGE, []),
        (False, [ACKNOWLEDGED], STRANGE, []),
        (False, [UNANSWERED, ACKNOWLEDGED], {**STRANGE, "id-3": an_arrival(107.0, SOUTH)}, []),  # one unanswered try, two messages too many
        (False, [REFUSED, ACKNOWLEDGED], STRANGE, []),
        (True, [REFUSED, ACKNOWLEDGED], STRANGE, [KILLED]),
        (False, [REFUSED, ACKNOWLEDGED], STRANGE, [replace(KILLED, node=WEST)]),
        (False, [REFUSED, ACKNOWLEDGED], STRANGE, [replace(KILLED, began_at=107.0, ended_at=109.0)]),  # after it had arrived
        (False, [REFUSED, ACKNOWLEDGED], STRANGE, [replace(KILLED, began_at=90.0, ended_at=98.0)]),  # had told long ago
        (True, [REFUSED, ACKNOWLEDGED], STRANGE, [replace(PAUSED, node=EAST, ended_at=99.5)]),  # refused when it went on
        (True, [REFUSED, ACKNOWLEDGED], STRANGE, [replace(CUT, other=SOUTH)]),
        (False, [REFUSED, ACKNOWLEDGED], STRANGE, [CUT]),  # it could tell that one
        (False, [REFUSED, ACKNOWLEDGED], {"id-2": an_arrival(106.0, EAST), "id-1": STRANGE["id-1"]}, [KILLED]),  # it gave it up itself
        (False, [ACKNOWLEDGED, replace(ACKNOWLEDGED, network_id="id-2")], STRANGE, []),
        (True, [IN_ONE_SESSION], FIRST_OF_TWO, [replace(KILLED, node=WEST)]),
        (False, [IN_ONE_SESSION], STRANGE, [replace(KILLED, node=WEST)]),  # an id of no time is of no try
        (False, [replace(IN_ONE_SESSION, began_at=101.0)], FIRST_OF_TWO, [replace(KILLED, node=WEST)]),  # made before it
        (False, [IN_ONE_SESSION], FIRST_OF_TWO, [replace(KILLED, node=SOUTH)]),
        (False, [IN_ONE_SESSION], FIRST_OF_TWO, []),
    ],
)
def test_a_repetition_by_the_client_needs_a_try_without_an_answer(
    expected: bool, tries: list[Submission], firsts: dict[str, Arrival], faults: list[Fault]
) -> None:
    assert expected is explains_repetition(a_sent(*tries), firsts, faults, TIMES)
