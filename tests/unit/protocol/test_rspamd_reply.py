"""What rspamd answers, and what it never should."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.filtering import FilterAction, HeaderChanges
from shadowrelay.model.replies import Reply
from shadowrelay.protocol.header_edit import edited, header_end
from shadowrelay.protocol.rspamd_reply import BadVerdict, parse_reply


def reply(**fields: Any) -> bytes:
    return json.dumps({"action": "no action", "score": 1.5, **fields}).encode()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"action": "reject"}, Reply(550, "5.7.1", "Rejected by the mail filter")),
        ({"action": "reject", "messages": {"smtp_message": "Gtube pattern"}}, Reply(550, "5.7.1", "Gtube pattern")),
        ({"action": "reject", "messages": {"smtp_message": "a\r\n250 OK é"}}, Reply(550, "5.7.1", "a 250 OK ?")),
        ({"action": "reject", "messages": {"smtp_message": 7}}, Reply(550, "5.7.1", "Rejected by the mail filter")),
        ({"action": "reject", "messages": []}, Reply(550, "5.7.1", "Rejected by the mail filter")),
        ({"action": "soft reject"}, Reply(451, "4.7.1", "Try again later: the mail filter asks for it")),
        ({"action": "greylist"}, Reply(451, "4.7.1", "Try again later: greylisted")),
    ],
)
def test_a_refusal_is(fields: dict[str, Any], expected: Reply) -> None:
    verdict = parse_reply(reply(**fields), "r")

    assert (FilterAction.REFUSE, expected) == (verdict.action, verdict.reply)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, HeaderChanges()),
        ({"milter": {}}, HeaderChanges()),
        ({"milter": {"add_headers": [], "remove_headers": []}}, HeaderChanges()),
        ({"milter": {"add_headers": {"X-A": "1"}}}, HeaderChanges(added=(("X-A", "1"),))),
        ({"milter": {"add_headers": {"X-A": {"value": "1", "order": 0}}}}, HeaderChanges(added=(("X-A", "1"),))),
        ({"milter": {"add_headers": {"X-A": ["1", {"value": 2}]}}}, HeaderChanges(added=(("X-A", "1"), ("X-A", "2")))),
        ({"milter": {"add_headers": {"X-A": "1\n2\r\n\t3"}}}, HeaderChanges(added=(("X-A", "1\r\n\t2\r\n\t3"),))),
        ({"milter": {"remove_headers": {"X-A": 0, "X-B": [1, -1]}}}, HeaderChanges(removed=(("X-A", 0), ("X-B", 1), ("X-B", -1)))),
        ({"dkim-signature": "v=1; a=b;\r\n\tb=c"}, HeaderChanges(added=(("DKIM-Signature", "v=1; a=b;\r\n\tb=c"),))),
        ({"dkim-signature": ["v=1", "v=2"]}, HeaderChanges(added=(("DKIM-Signature", "v=1"), ("DKIM-Signature", "v=2")))),
        ({"action": "add header"}, HeaderChanges(added=(("X-Spam", "Yes"),))),
        ({"action": "discard"}, HeaderChanges(added=(("X-Spam", "Yes"),))),
        ({"action": "add header", "milter": {"add_headers": {"x-spam": "ja"}}}, HeaderChanges(added=(("x-spam", "ja"),))),
        ({"action": "rewrite subject", "subject": "*** SPAM *** x"}, HeaderChanges(subject="*** SPAM *** x")),
        ({"action": "rewrite subject", "subject": "Grüße"}, HeaderChanges(subject="=?utf-8?b?R3LDvMOfZQ==?=")),
        ({"subject": "not asked for"}, HeaderChanges()),
    ],
)
def test_changes_are(fields: dict[str, Any], expected: HeaderChanges) -> None:
    verdict = parse_reply(reply(**fields), "r")

    assert (FilterAction.ACCEPT, expected) == (verdict.action, verdict.changes)


def test_the_label_is_plain() -> None:
    assert "r:soft-reject:1.50" == parse_reply(reply(action="soft reject"), "r").label


HOSTILE: list[tuple[str, bytes]] = [
    ("nothing", b""),
    ("no JSON", b"<html>"),
    ("cut short", b'{"action": "no action"'),
    ("two of them", b'{"action": "no action"}{"action": "no action"}'),
    ("a list", b"[]"),
    ("a number", b"7"),
    ("deep", b"[" * 100_000),
    ("deep objects", b'{"a":' * 100_000),
    ("not UTF-8", b'{"action": "\xff\xfe"}'),
    ("long", b'{"action": "no action", "x": "' + b"x" * 1_048_576 + b'"}'),
    ("no action", b"{}"),
    ("an action that there is not", reply(action="deliver twice")),
    ("an action that is a list", reply(action=["reject"])),
    ("an error", reply(error="cannot scan")),
    ("a score that is text", reply(score="NaN")),
    ("a score that is none", b'{"action": "no action", "score": NaN}'),
    ("an endless score", b'{"action": "no action", "score": 1e999}'),
    ("a long score", b'{"action": "no action", "score": ' + b"9" * 3_000 + b"}"),
    ("milter is text", reply(milter="x")),
    ("headers are a list", reply(milter={"add_headers": ["X: y"]})),
    ("a name with a line end", reply(milter={"add_headers": {"X: y\r\nBcc": "z"}})),
    ("a name with a space", reply(milter={"add_headers": {"X Y": "z"}})),
    ("an empty name", reply(milter={"add_headers": {"": "z"}})),
    ("a long name", reply(milter={"add_headers": {"X" * 101: "z"}})),
    ("a value that is an object", reply(milter={"add_headers": {"X": {"value": {}}}})),
    ("a value that is not there", reply(milter={"add_headers": {"X": {"order": 1}}})),
    ("a value with a NUL", reply(milter={"add_headers": {"X": "a\x00b"}})),
    ("a value with an escape", reply(milter={"add_headers": {"X": "\x1b[2J"}})),
    ("a value with half a surrogate", b'{"action": "no action", "milter": {"add_headers": {"X": "\\ud800"}}}'),
    ("a long line", reply(milter={"add_headers": {"X": "y" * 999}})),
    ("many headers", reply(milter={"add_headers": {"X": ["y"] * 101}})),
    ("much header", reply(milter={"add_headers": {"X": "y\n" * 40_000}})),
    ("a removal without a number", reply(milter={"remove_headers": {"X": "all"}})),
    ("a removal of true", reply(milter={"remove_headers": {"X": True}})),
    ("many removals", reply(milter={"remove_headers": {f"X-{number}": 0 for number in range(200)}})),
    ("a signature that is a table", reply(**{"dkim-signature": {"x": "y"}})),
    ("a signature with a header behind it", reply(**{"dkim-signature": "v=1\x0bBcc: x"})),
    ("no subject", reply(action="rewrite subject")),
    ("an empty subject", reply(action="rewrite subject", subject=" ")),
    ("a long subject", reply(action="rewrite subject", subject="x" * 901)),
]


@pytest.mark.parametrize("octets", [case[1] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_a_reply_that_means_nothing_is_no_verdict(octets: bytes) -> None:
    with pytest.raises(BadVerdict):
        parse_reply(octets, "r")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(st.sampled_from(["no action", "add header", "reject", "rewrite subject"]), JSON, JSON, JSON, JSON)
def test_no_reply_puts_anything_but_header_lines_into_a_header(action: str, added: Any, removed: Any, signature: Any, subject: Any) -> None:
    fields = {"action": action, "subject": subject, "dkim-signature": signature}
    try:
        verdict = parse_reply(reply(**fields, milter={"add_headers": added, "remove_headers": removed}), "r")
    except BadVerdict:
        return
    header = edited(b"Subject: x\r\n", verdict.changes)
    assert b"\r\n\r\n" not in header
    assert header.count(b"\r") == header.count(b"\n") == header.count(b"\r\n")
    assert header.isascii()


HEADER = b"From: a@x.example\r\nX-A: 1\r\nX-A: 2\r\n\tmore\r\nnot a field\r\nx-a: 3\r\nSubject: old\r\n"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (HeaderChanges(removed=(("X-A", 0),)), b"From: a@x.example\r\nnot a field\r\nSubject: old\r\n"),
        (HeaderChanges(removed=(("X-A", 2),)), b"From: a@x.example\r\nX-A: 1\r\nnot a field\r\nx-a: 3\r\nSubject: old\r\n"),
        (HeaderChanges(removed=(("X-A", -1),)), b"From: a@x.example\r\nX-A: 1\r\nX-A: 2\r\n\tmore\r\nnot a field\r\nSubject: old\r\n"),
        (HeaderChanges(removed=(("X-A", 9), ("X-A", -9), ("X-B", 0))), HEADER),
        (HeaderChanges(subject="new"), HEADER.replace(b"old", b"new")),
        (HeaderChanges(added=(("X-B", "1"), ("X-C", "2\r\n\t3"))), b"X-B: 1\r\nX-C: 2\r\n\t3\r\n" + HEADER),
    ],
)
def test_a_header_is_changed(changes: HeaderChanges, expected: bytes) -> None:
    assert expected == edited(HEADER, changes)


def test_a_subject_comes_where_none_was() -> None:
    assert b"From: a@x.example\r\nSubject: new\r\n" == edited(b"From: a@x.example\r\n", HeaderChanges(subject="new"))


@pytest.mark.parametrize(("octets", "end"), [(b"A: b\r\n\r\nx", 6), (b"\r\nx", 0), (b"A: b\r\n", -1), (b"", -1)])
def test_the_end_of_a_header_is(octets: bytes, end: int) -> None:
    assert end == header_end(octets)
