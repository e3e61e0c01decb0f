"""Lines are those of a real Postfix 3.7 as Docker gives them."""

from shadowrelay.lab.traffic import SubmissionResult
from shadowrelay.lab.verification import tries

ID = "01a1fee7-8acb-747a-b824-2fee48a5d5bf"
AT = "2026-11-21T16:19:09.692953637Z Nov 21 16:19:09 sender postfix/smtp[119]: 4jWy7x4M4gz94b9: "
LATER = "2026-11-21T16:19:12.100000000Z Nov 21 16:19:12 sender postfix/smtp[119]: 4jWy7x4M4gz94b9: "
SENT = f"relay=mx2.east.example[10.83.9.12]:2525, delay=0.1, delays=0.03/0.02/0.01/0.05, dsn=2.0.0, status=sent (250 2.0.0 Queued as {ID})"
REFUSED = "host mx1.east.example[10.83.9.11] said: 451 4.4.0 Message failed to be made redundant (in reply to end of DATA command)"
TIMED_OUT = "conversation with mx1.west.example[10.83.9.21] timed out while sending end of data -- message may be sent more than once"


def heard(*lines: str) -> list[tuple[str, SubmissionResult, str]]:
    return [(one.node, one.answer, one.network_id) for one in tries(lines).get("4jWy7x4M4gz94b9", [])]


def test_what_was_sent_is_acknowledged_once_whatever_the_number_of_recipients() -> None:
    lines = [f"{AT}to=<user1@corp.example>, {SENT}", f"{AT}to=<user1@partner.example>, {SENT}"]

    assert [("mx2.east.example", SubmissionResult.ACKNOWLEDGED, ID)] == heard(*lines)


def test_the_instant_is_that_of_docker() -> None:
    assert [1795277949.692953] == [one.at for one in tries([f"{AT}to=<user1@corp.example>, {SENT}"])["4jWy7x4M4gz94b9"]]


def test_a_refusal_after_the_final_dot_counts_and_one_before_does_not() -> None:
    early = "host mx2.east.example[10.83.9.12] said: 452 4.3.1 Insufficient system resources (in reply to MAIL FROM command)"

    assert [("mx1.east.example", SubmissionResult.REFUSED, "")] == heard(AT + early, AT + REFUSED)


def test_silence_after_the_final_dot_counts_and_before_it_does_not() -> None:
    early = "conversation with mx1.west.example[10.83.9.21] timed out while receiving the initial server greeting"

    assert [("mx1.west.example", SubmissionResult.NOTHING, "")] == heard(AT + early, AT + TIMED_OUT)


def test_the_reason_of_a_deferral_is_read_like_a_line_of_its_own() -> None:
    deferred = f"to=<user1@corp.example>, relay=mx1.west.example[10.83.9.21]:2525, delay=16, dsn=4.4.2, status=deferred ({TIMED_OUT})"

    assert [("mx1.west.example", SubmissionResult.NOTHING, "")] == heard(AT + deferred)


def test_two_tries_at_the_same_node_are_two() -> None:
    assert [("mx1.east.example", SubmissionResult.REFUSED, ""), ("mx1.east.example", SubmissionResult.REFUSED, "")] == heard(
        AT + REFUSED, LATER + REFUSED
    )


def test_lines_of_other_programs_are_passed_over() -> None:
    other = AT.replace("postfix/smtp[", "postfix/qmgr[")

    assert {} == tries([other + "from=<sender@client.example>, size=4000, nrcpt=1 (queue active)", "", "not a line of Postfix"])
