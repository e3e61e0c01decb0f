"""The verification can fail: each thing that it is to find is planted once."""

import json
from dataclasses import replace

from shadowrelay.lab.account import Cause, Fault, FaultKind
from shadowrelay.lab.traffic import Arrival, Sent, Submission, SubmissionResult
from shadowrelay.lab.verification import Injected, injected, sent_messages, since, verify

EAST, WEST = "mx1.east.example", "mx1.west.example"
SENT = Sent(1, "<1.b@client.example>", ("user1@corp.example",), "digest", [Submission(100.0, EAST, SubmissionResult.ACKNOWLEDGED, "id-1")])
ARRIVAL = Arrival(101.0, "user1@corp.example", "id-1", "<1.b@client.example>", EAST, False, "digest")
GIVEN = Injected(1, "<1.b@client.example>", ("user1@corp.example",), "digest", "Q1", 99.0)


def test_a_message_that_arrived_is_good() -> None:
    result = verify([SENT], [ARRIVAL], [], frozenset())

    assert (True, "acknowledged 1, arrived 1, lost 0, duplicated 0, taken over 0, still queued 0") == (result.is_good, result.line())


def test_what_did_not_arrive_is_lost_unless_a_living_node_has_it() -> None:
    lost, queued = verify([SENT], [], [], frozenset()), verify([SENT], [], [], frozenset({"id-1"}))

    assert (["id-1"], [], False) == (lost.lost, lost.still_queued, lost.is_good)
    assert ([], ["id-1"], False) == (queued.lost, queued.still_queued, queued.is_good)


def test_nothing_is_lost_before_everybody_was_asked() -> None:
    result = verify([SENT], [], [], frozenset(), silent=("mx1.east",))

    assert ([], ["id-1"], ["mx1.east"], False) == (result.lost, result.still_queued, result.silent, result.is_good)


def test_what_a_receiving_server_has_not_written_down_is_not_lost_yet() -> None:
    result = verify([SENT], [], [], frozenset(), is_receiver_busy=True)

    assert ([], ["id-1"], False) == (result.lost, result.still_queued, result.is_good)


def test_a_changed_message_is_bad() -> None:
    result = verify([SENT], [replace(ARRIVAL, own_sha256="another")], [], frozenset())

    assert (["id-1"], False) == (result.changed, result.is_good)


def test_a_duplicate_is_good_only_with_a_cause() -> None:
    twice = [ARRIVAL, replace(ARRIVAL, at=110.0, client_name=WEST)]
    bad, good = verify([SENT], twice, [], frozenset()), verify([SENT], twice, [Fault(FaultKind.WIPE, EAST, 102.5, 120.0)], frozenset())

    assert (False, {"unexplained": 1}) == (bad.is_good, bad.causes)
    assert (True, [Cause.DISK_DESTROYED]) == (good.is_good, [one.cause for one in good.duplicates])
    assert good.line().endswith("duplicated 1 (b: 1), taken over 1, still queued 0")


def test_what_was_resubmitted_on_request_is_neither_a_duplicate_nor_the_delivery() -> None:
    again = replace(ARRIVAL, at=130.0, client_name=WEST, is_resubmitted=True)
    both, alone = verify([SENT], [ARRIVAL, again], [], frozenset()), verify([SENT], [again], [], frozenset())

    assert (True, [again], []) == (both.is_good, both.resubmitted, both.duplicates)
    assert ["id-1"] == alone.lost


def test_what_postfix_still_has_was_never_acknowledged() -> None:
    refused = replace(SENT, tries=[Submission(100.0, EAST, SubmissionResult.REFUSED)])
    result = verify([refused], [], [], frozenset(), at_sender={SENT.internet_message_id})

    assert (0, 1, [], True) == (result.acknowledged, result.not_acknowledged, result.unaccounted, result.is_good)


def test_what_no_node_took_and_postfix_does_not_have_is_missing_a_witness() -> None:
    result = verify([replace(SENT, tries=[])], [], [], frozenset(), at_sender={"<2.b@client.example>"})

    assert (1, [SENT.internet_message_id], False) == (result.not_acknowledged, result.unaccounted, result.is_good)


def test_what_arrived_and_a_node_has_not_finished_is_still_queued() -> None:
    result = verify([SENT], [ARRIVAL], [], frozenset({"id-1", "id-of-somebody-else"}))

    assert (1, [], ["id-1"], False) == (result.arrived, result.lost, result.still_queued, result.is_good)


def test_a_notice_to_the_sender_is_not_mail_that_nobody_sent() -> None:
    notice = replace(ARRIVAL, recipient="sender@client.example", internet_message_id="<dsn@mx1.east.example>")
    result = verify([SENT], [ARRIVAL, notice], [], frozenset())

    assert (1, [], True) == (result.notices, result.changed, result.is_good)


def test_mail_that_nobody_sent_is_found() -> None:
    result = verify([SENT], [ARRIVAL, replace(ARRIVAL, internet_message_id="<?>", network_id="id-9")], [], frozenset())

    assert (["id-9"], False) == (result.changed, result.is_good)


def test_tries_belong_to_messages_by_postfix_queue_id_and_what_it_refused_was_not_sent() -> None:
    refused = replace(GIVEN, number=2, queue_id="")

    assert [SENT] == sent_messages([GIVEN, refused], {"Q1": SENT.tries, "Q9": []})


def test_only_what_was_sent_from_then_on_is_looked_at() -> None:
    before = replace(GIVEN, internet_message_id="<0.a@client.example>", at=50.0)
    strange = replace(ARRIVAL, internet_message_id="<?>")

    assert ([GIVEN], [ARRIVAL, strange]) == since(
        [before, GIVEN], [replace(ARRIVAL, internet_message_id="<0.a@client.example>"), ARRIVAL, strange], 99.0
    )


def test_lines_of_the_injector_are_read() -> None:
    line = {**{name: getattr(GIVEN, name) for name in GIVEN.__dataclass_fields__}, "recipients": list(GIVEN.recipients)}

    assert [GIVEN] == injected([json.dumps(line), ""])


def test_what_is_sent_while_the_witnesses_are_asked_is_left_out() -> None:
    meanwhile = replace(GIVEN, internet_message_id="<2.b@client.example>", at=102.0)
    arrived = [ARRIVAL, replace(ARRIVAL, internet_message_id="<2.b@client.example>", network_id="id-2")]

    assert ([GIVEN], [ARRIVAL]) == since([GIVEN], arrived, 0.0, [GIVEN, meanwhile])
