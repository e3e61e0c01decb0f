"""Figures and invariants can see what they look for: each is planted once."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from shadowrelay.lab.account import Cause, Duplicate
from shadowrelay.lab.scenarios.catalogue import SCENARIOS
from shadowrelay.lab.scenarios.player import replies, rows, words
from shadowrelay.lab.scenarios.verdict import FIGURES, Database, LoggedRow, ScenarioEvidence, figures, findings, judge
from shadowrelay.lab.topology import LabError
from shadowrelay.lab.traffic import Arrival, Sent, Submission, SubmissionResult
from shadowrelay.lab.verification import Verification
from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.protocol.tracking import format_line

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
EAST, EAST_2, WEST, WEST_2 = "mx1.east.example", "mx2.east.example", "mx1.west.example", "mx2.west.example"
USER = "user1@corp.example"
OLD = Database("one", 1, 0, 50)
GOOD = Verification(acknowledged=1, arrived=1)


def told(server: str, event: EventId, seconds: float = 0, /, message: str = "id-1", **fields: object) -> LoggedRow:
    known = {"recipients": (USER,), **fields}
    return LoggedRow(server, TrackingEvent(AT + timedelta(seconds=seconds), event, EventSource.SMTP, 1, message, **known))  # type: ignore[arg-type]


LIFE = (
    told(WEST, EventId.HARECEIVE, 0.1, client_hostname=EAST),
    told(EAST, EventId.HAREDIRECT, 0.2, server_hostname=WEST),
    told(EAST, EventId.RECEIVE, 0.3, custom_data=(("Replication", "Success"),)),
    told(EAST, EventId.SENDEXTERNAL, 1),
    told(WEST, EventId.HADISCARD, 2, client_hostname=EAST, source_context="delivered", recipients=()),
)
SENT = Sent(1, "<1@client.example>", (USER,), "digest", [Submission(AT.timestamp() + 0.3, EAST, SubmissionResult.ACKNOWLEDGED, "id-1")])
ARRIVED = Arrival(AT.timestamp() + 1.3, USER, "id-1", "<1@client.example>", EAST, False, "digest")
WELL = ScenarioEvidence(GOOD, LIFE, sent=(SENT,), arrived=(ARRIVED,))


def without(event: EventId) -> tuple[LoggedRow, ...]:
    return tuple(each for each in LIFE if each.event.event is not event)


def resubmitted(reason: str) -> LoggedRow:
    return told(WEST, EventId.RESUBMIT, 30, custom_data=(("Reason", reason), ("DetectedAt", "2026-11-21T12:00:28.500000Z")))


AGAIN = replace(ARRIVED, is_resubmitted=True)
SENT_INSIDE = told(EAST, EventId.SEND, 1)
OTHER_INSIDE = told(EAST, EventId.SEND, 0, message="id-2")


KEPT_HERE = told(EAST, EventId.SEND, 0.5, server_hostname=WEST, source_context="shadow kept as id-2")
END_THERE = told(WEST, EventId.SENDEXTERNAL, 1, message="id-2")
SILENCE = (("Reason", "Silence"), ("SilentSince", "2026-11-21T12:00:21Z"), ("DetectedAt", "2026-11-21T12:00:29Z"))
END_OF_NOBODY = told(WEST, EventId.SENDEXTERNAL, 1, message="id-2", recipients=())
TAKEN_BACK = told(EAST, EventId.RESUBMIT, 30, message="id-2", custom_data=SILENCE)
ANOTHER_WAY = told(EAST, EventId.SEND, 40, message="id-2", server_hostname=WEST_2)
SAME_WAY = told(EAST, EventId.SEND, 40, message="id-2", server_hostname=WEST)


FIGURE_CASES: list[tuple[str, float, ScenarioEvidence]] = [
    ("acknowledged", 1, WELL),
    ("arrived", 1, WELL),
    ("lost", 1, ScenarioEvidence(Verification(lost=["id-1"]))),
    ("duplicates", 1, ScenarioEvidence(Verification(duplicates=[Duplicate(1, "id-1", 2, Cause.CUT_OFF)]))),
    ("taken_over", 7, ScenarioEvidence(Verification(taken_over=7))),
    ("promoted", 2, ScenarioEvidence(GOOD, (resubmitted("Silence"), resubmitted("Handover")))),
    ("promoted_silence", 1, ScenarioEvidence(GOOD, (resubmitted("Silence"), resubmitted("DatabaseChanged")))),
    ("promoted_handover", 1, ScenarioEvidence(GOOD, (resubmitted("Silence"), resubmitted("Handover")))),
    ("promoted_new_database", 1, ScenarioEvidence(GOOD, (resubmitted("Silence"), resubmitted("DatabaseChanged")))),
    ("takeover_seconds", 1.5, ScenarioEvidence(GOOD, (resubmitted("Silence"),))),
    ("delivery_seconds", 1.0, WELL),
    ("refused_not_redundant", 3, ScenarioEvidence(GOOD, replies={"451 4.4.0": 3, "451 4.3.2": 9})),
    ("refused_for_storage", 3, ScenarioEvidence(GOOD, replies={"451 4.3.0": 1, "452 4.3.1": 2})),
    ("copies_failed", 1, ScenarioEvidence(GOOD, (told(EAST, EventId.HAREDIRECTFAIL),))),
    ("copies_in_own_site", 1, ScenarioEvidence(GOOD, (*LIFE, told(EAST, EventId.HAREDIRECT, server_hostname=EAST_2)))),
    ("placed_again", 1, ScenarioEvidence(GOOD, (*LIFE, told(EAST, EventId.HAREDIRECT, 9, server_hostname=WEST_2)))),
    ("acknowledged_alone", 1, ScenarioEvidence(GOOD, (told(EAST, EventId.RECEIVE, custom_data=(("Replication", "Failed"),)),))),
    ("heartbeats_failed", 4, ScenarioEvidence(GOOD, words={"peer.silent": 4})),
    ("deferred", 1, ScenarioEvidence(GOOD, (told(EAST, EventId.DEFER),))),
    ("resumed", 1, ScenarioEvidence(GOOD, LIFE, databases={EAST: (OLD, replace(OLD, started_at=AT.timestamp() + 0.6)), WEST: (OLD, OLD)})),
    ("reopened", 1, ScenarioEvidence(GOOD, databases={EAST: (OLD, Database("one", 2, 51, 60)), WEST: (OLD, replace(OLD, position=60))})),
    ("databases_new", 1, ScenarioEvidence(GOOD, databases={EAST: (OLD, Database("two", 1, 0, 3)), WEST: (OLD, OLD)})),
    (
        "rolled_back",
        1,
        ScenarioEvidence(GOOD, databases={EAST: (OLD, Database("two", 2, 51, 60, former="one"), Database("three", 1, 0, 3)), WEST: (OLD,)}),
    ),
    ("copied_twice", 1, ScenarioEvidence(GOOD, (*LIFE, told(EAST, EventId.RECEIVE, custom_data=(("Copies", "2/2"),))))),
    ("resubmitted", 3, ScenarioEvidence(Verification(resubmitted=[AGAIN, AGAIN, replace(AGAIN, network_id="id-2")]))),
    ("resubmitted_twice", 1, ScenarioEvidence(Verification(resubmitted=[AGAIN, AGAIN, replace(AGAIN, network_id="id-2")]))),
    (
        "not_resubmitted",
        1,
        ScenarioEvidence(Verification(resubmitted=[AGAIN]), (SENT_INSIDE, OTHER_INSIDE), stopped=frozenset({EAST})),
    ),
    ("waiting", 6, ScenarioEvidence(GOOD, waiting=6)),
    ("kept", 1, ScenarioEvidence(GOOD, (*LIFE, KEPT_HERE, KEPT_HERE))),
    ("taken_back", 1, ScenarioEvidence(GOOD, (KEPT_HERE, TAKEN_BACK, resubmitted("Silence"), SAME_WAY))),
    ("taken_back_seconds", 9.0, ScenarioEvidence(GOOD, (KEPT_HERE, TAKEN_BACK, SAME_WAY))),
    ("another_way", 1, ScenarioEvidence(GOOD, (KEPT_HERE, TAKEN_BACK, ANOTHER_WAY))),
    ("another_way", 0, ScenarioEvidence(GOOD, (KEPT_HERE, TAKEN_BACK, SAME_WAY))),
    ("another_way", 0, ScenarioEvidence(GOOD, (KEPT_HERE, ANOTHER_WAY))),
]


@pytest.mark.parametrize(("name", "value", "evidence"), FIGURE_CASES, ids=[f"{name} {value}" for name, value, _ in FIGURE_CASES])
def test_a_figure_counts_what_it_says(name: str, value: float, evidence: ScenarioEvidence) -> None:
    assert value == figures(evidence)[name]
    assert 0 == figures(ScenarioEvidence(Verification()))[name]


def test_every_figure_has_a_case() -> None:
    assert list(FIGURES) == list(dict.fromkeys(name for name, _, _ in FIGURE_CASES))


def test_a_good_life_breaks_no_invariant() -> None:
    assert [] == [finding for finding in findings(WELL) if not finding.holds]


BROKEN: list[tuple[str, ScenarioEvidence]] = [
    ("I1", replace(WELL, verification=Verification(acknowledged=1, lost=["id-1"]))),
    ("I2", replace(WELL, logged=without(EventId.HARECEIVE))),
    ("I2", replace(WELL, logged=(*without(EventId.HARECEIVE), told(WEST, EventId.HARECEIVE, 0.4)))),
    ("I3", replace(WELL, logged=(*without(EventId.SENDEXTERNAL), told(EAST, EventId.SENDEXTERNAL, 3)))),
    ("I4", replace(WELL, verification=Verification(duplicates=[Duplicate(1, "id-1", 2, Cause.NONE)]))),
    ("I5", replace(WELL, verification=Verification(changed=["id-1"]))),
    ("I7", replace(WELL, verification=Verification(still_queued=["id-1"]))),
    ("I8", replace(WELL, logged=(told(EAST, EventId.SENDEXTERNAL, 1),))),
    ("I8", replace(WELL, logged=without(EventId.SENDEXTERNAL))),
    ("I8", replace(WELL, logged=(*without(EventId.SENDEXTERNAL), KEPT_HERE))),
    (
        "I8",
        replace(
            WELL, logged=(*without(EventId.SENDEXTERNAL), KEPT_HERE, told(WEST, EventId.SENDEXTERNAL, 1, message="id-2", recipients=()))
        ),
    ),
]


@pytest.mark.parametrize(("invariant", "evidence"), BROKEN)
def test_an_invariant_that_is_broken_is_seen(invariant: str, evidence: ScenarioEvidence) -> None:
    broken = [finding.invariant for finding in findings(evidence) if not finding.holds]

    assert invariant in broken
    assert {invariant} | ({"I1"} if invariant == "I7" else set()) == set(broken)


def test_a_message_that_was_relayed_ends_where_it_went() -> None:
    relayed = replace(WELL, logged=(*without(EventId.SENDEXTERNAL), KEPT_HERE, END_THERE))

    assert [] == [finding for finding in findings(relayed) if not finding.holds]


RECEIVED = (("Replication", "Success"),)
AT_NEXT_HOP = told(WEST, EventId.RECEIVE, 0.4, message="id-2", custom_data=(*RECEIVED, ("ShadowAt", EAST)))
LATE = told(EAST, EventId.RECEIVE, 0.6, custom_data=RECEIVED, source_context="delayed: done")


@pytest.mark.parametrize(
    ("is_well", "logged"),
    [
        (True, (LATE, KEPT_HERE, AT_NEXT_HOP)),
        (False, (LATE, AT_NEXT_HOP)),  # neither relayed nor kept
        (False, (told(EAST, EventId.RECEIVE, 0.4, custom_data=RECEIVED, source_context="delayed: done"), KEPT_HERE)),
        (False, (told(EAST, EventId.RECEIVE, 0.6, custom_data=RECEIVED, source_context="delayed: copied"), KEPT_HERE)),
        (False, (LoggedRow(EAST_2, KEPT_HERE.event), AT_NEXT_HOP)),  # another server has kept it
    ],
)
def test_a_250_that_waited_and_a_message_with_its_shadow_at_the_previous_hop_need_no_copy(
    is_well: bool, logged: tuple[LoggedRow, ...]
) -> None:
    seen = [finding.holds for finding in findings(ScenarioEvidence(GOOD, logged)) if finding.invariant == "I2"]

    assert [is_well] == seen


def test_a_server_that_was_killed_may_have_lost_its_last_rows() -> None:
    killed = replace(WELL, logged=without(EventId.HARECEIVE), stopped=frozenset({WEST}))

    assert [] == [finding.invariant for finding in findings(killed) if finding.invariant == "I2" and not finding.holds]


def test_a_broken_invariant_fails_a_scenario() -> None:
    twice = Verification(acknowledged=1, arrived=1, duplicates=[Duplicate(1, "id-1", 2, Cause.NONE)])
    back = (OLD, Database("two", 2, 51, 60, former="one"))
    seen = replace(WELL, logged=(*LIFE, resubmitted("DatabaseRolledBack")), databases={EAST: back})
    scenario = SCENARIOS["old-database"]

    assert judge(scenario, seen).is_passed
    assert not judge(scenario, replace(seen, verification=twice)).is_passed
    assert "rolled_back = 1, expected > 0: " in judge(scenario, seen).outcomes[0].line()


def test_a_verdict_shows_what_is_not_nothing_and_what_was_asked_for() -> None:
    shown = dict(judge(SCENARIOS["new-database"], WELL).shown())

    assert {"messages that a node answered 250": 1, "of these, lost": 0}.items() <= shown.items()
    assert FIGURES["promoted_new_database"][0] in shown
    assert FIGURES["deferred"][0] not in shown


def test_events_of_operator_logs_are_counted_and_other_lines_are_not() -> None:
    lines = [
        '{"event": "peer.silent", "server": "a"}',
        "shadowrelay: warning: …",
        "[1]",
        '{"event": "peer.silent"}',
        '{"event": "node.started"}',
    ]

    assert {"peer.silent": 2, "node.started": 1} == words(lines)


def test_replies_that_postfix_heard_are_counted_by_their_codes() -> None:
    begin = "2026-11-21T12:00:00.1Z Nov 21 12:00:00 sender postfix/smtp[81]: 4bQ: "
    lines = [
        f"{begin}host mx1.east.example[10.83.9.11] said: 451 4.4.0 Message failed to be made redundant (in reply to end of DATA command)",
        f"{begin}to=<user1@corp.example>, relay=mx2.east.example[10.83.9.12]:2525, delay=1, dsn=4.4.0, status=deferred "
        "(host mx2.east.example[10.83.9.12] said: 451 4.4.0 Message failed to be made redundant (in reply to end of DATA command))",
        f"{begin}host mx1.east.example[10.83.9.11] said: 451 4.3.0 Local storage error (in reply to MAIL FROM command)",
        f"{begin}to=<user1@corp.example>, relay=mx2.east.example[10.83.9.12]:2525, dsn=2.0.0, status=sent (250 2.6.0 id Queued)",
    ]

    assert {"451 4.4.0": 2, "451 4.3.0": 1} == replies(lines)


def test_rows_of_a_tracking_log_are_read_and_a_torn_one_is_not_passed_over() -> None:
    lines: Sequence[bytes] = [format_line(each.event) for each in LIFE]

    assert [each.event for each in LIFE] == [each.event for each in rows(EAST, b"".join(lines))]
    with pytest.raises(LabError, match=r"a row in the tracking log of mx1\.east\.example cannot be read"):
        rows(EAST, b"".join(lines)[:-9])


def test_a_scenario_whose_mail_never_went_through_has_not_passed() -> None:
    scenario = replace(SCENARIOS["new-database"], expectations=())
    seen = replace(WELL, verification=replace(WELL.verification, not_acknowledged=3))

    assert judge(scenario, WELL).is_passed
    assert not judge(scenario, seen).is_passed
    assert judge(scenario, seen).summary.endswith(", never acknowledged 3")


def test_mail_without_a_witness_breaks_the_first_invariant() -> None:
    seen = replace(WELL, verification=replace(WELL.verification, not_acknowledged=1, unaccounted=["<1.b@client.example>"]))

    assert ["I1"] == [one.invariant for one in judge(SCENARIOS["new-database"], seen).findings if not one.holds]
