"""Parsers of what strangers send, each as a function of octets: whatever these are, it ends, and what it makes of them keeps its word.

An `AssertionError`, or any exception that the parser does not announce, is a finding. `run.py` looks for more of them.
"""

import asyncio
import contextlib
import io
from collections.abc import Callable
from functools import cache
from ipaddress import ip_address

from shadowrelay.memory import ContentBudget
from shadowrelay.model.filtering import FilterAction
from shadowrelay.model.replies import WireError
from shadowrelay.protocol.conversion import NotConvertible, converted, is_in_lines
from shadowrelay.protocol.header_edit import edited
from shadowrelay.protocol.original_client import (
    NOBODY,
    XCLIENT,
    XFORWARD,
    OriginalClient,
    format_commands,
    format_original_client,
    parse_attributes,
    parse_original_client,
)
from shadowrelay.protocol.recipient_list import BrokenList, ListReader
from shadowrelay.protocol.rspamd_reply import BadVerdict, parse_reply
from shadowrelay.smtp.data import CommandReader
from shadowrelay.smtp.limits import READ_AHEAD_OCTETS
from shadowrelay.smtp.mta_sts_policy import MAX_AGE_MAX, PATTERNS_MAX, parse_policy, record_id
from shadowrelay.smtp.proxy_header import HEADER_OCTETS_MAX, BadProxyHeader, read_proxy_header
from shadowrelay.smtp.tokens import LIFE_SECONDS, Failure, _object_in, checked_token

INPUT_OCTETS_MAX = 64 * 1024


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def proxy(octets: bytes) -> None:
    """The PROXY protocol, versions 1 and 2, in front of a session."""
    loop = _loop()
    behind = b"EHLO x\r\n"
    octets = octets[: HEADER_OCTETS_MAX + 100]
    reader = CommandReader(ContentBudget().portion(), READ_AHEAD_OCTETS, loop, memoryview(bytearray(READ_AHEAD_OCTETS)))
    whole = octets + behind
    reader.get_buffer(-1)[: len(whole)] = whole
    reader.buffer_updated(len(whole))
    reader.feed_eof()
    try:
        found = loop.run_until_complete(read_proxy_header(reader))
    except (BadProxyHeader, asyncio.IncompleteReadError):
        return
    assert not found.address or str(ip_address(found.address)) == found.address
    assert 0 <= found.port <= 65_535
    assert not (found.is_local and found.address)
    assert whole.endswith(bytes(reader.buffered)), "it took more or less than the header"


def xclient(octets: bytes) -> None:
    """XCLIENT and XFORWARD from a mail server, and the client in the envelope of a copy."""
    try:
        text = octets.decode("utf-8")
    except UnicodeDecodeError:
        return  # refused before
    for known in (XCLIENT, XFORWARD):
        with contextlib.suppress(WireError):
            _check_client(parse_attributes(text, known, NOBODY))
    with contextlib.suppress(WireError):
        _check_client(parse_original_client(text))


def _check_client(client: OriginalClient) -> None:
    written = format_original_client(client)
    assert written.isascii()
    assert written.isprintable()
    assert format_original_client(parse_original_client(written)) == written
    assert not client.address or str(ip_address(client.address)) == client.address
    for verb, offered in (("XCLIENT", XCLIENT), ("XFORWARD", XFORWARD)):
        for line in format_commands(client, verb, frozenset(offered)):
            assert line.isascii()
            assert line.isprintable()
            assert len(line) <= 510


def rspamd(octets: bytes) -> None:
    """The JSON of rspamd."""
    try:
        verdict = parse_reply(octets, "rspamd")
    except BadVerdict:
        return
    assert verdict.label.isascii()
    assert verdict.label.isprintable()
    if verdict.action is FilterAction.REFUSE:
        assert verdict.reply is not None
        assert verdict.reply.code >= 400
        assert str(verdict.reply).isprintable()
        return
    header = edited(b"Subject: x\r\nFrom: a@x.example\r\n", verdict.changes)
    assert is_in_lines(header, 0, len(header))
    assert not header or header.endswith(b"\r\n")
    assert b"\r\n\r\n" not in header, "an end of the header within it"
    assert not header.startswith((b"\r\n", b" ", b"\t"))


def recipients(octets: bytes) -> None:
    """A file of recipients, read as `recipient_file` does."""
    try:
        lines = list(io.TextIOWrapper(io.BytesIO(octets), encoding="utf-8-sig"))
    except UnicodeDecodeError:
        return  # the old list stays
    for is_case_sensitive in (False, True):
        reader = ListReader(is_case_sensitive=is_case_sensitive)
        try:
            for line in lines:
                reader.take(line)
            found = reader.addresses()
        except BrokenList:
            continue
        assert found.count <= len(lines)
        found.has("a+b@x.example", "+")


def mta_sts(octets: bytes) -> None:
    """The policy of a domain, and its record in DNS."""
    found = record_id((octets.decode("latin-1"), f'"v=STSv1; id={octets.decode("latin-1")}"'))
    assert found.isalnum() or not found
    assert len(found) <= 32
    try:
        policy = parse_policy(octets)
    except ValueError:
        return
    assert 0 <= policy.max_age <= MAX_AGE_MAX
    assert len(policy.patterns) <= PATTERNS_MAX
    assert all(pattern.isascii() and len(pattern) <= 253 for pattern in policy.patterns)
    for host in ("mail.example.com", "a.b.example", "", "*", "example"):
        policy.covers(host)


def token(octets: bytes) -> None:
    """The answer of a token endpoint, or what a command prints."""
    found = checked_token(_object_in(octets))
    if isinstance(found, Failure):
        assert found.reason.isprintable()
        return
    value, seconds = found
    assert value.isascii()
    assert value.isprintable()
    assert " " not in value
    assert seconds > 0 or seconds == LIFE_SECONDS


def conversion(octets: bytes) -> None:
    """Binary content in lines."""
    for content in (octets, b"MIME-Version: 1.0\r\n" + octets):
        try:
            found = converted(content)
        except NotConvertible:
            continue
        written = b"".join(found.blocks(content))
        assert len(written) == found.size
        assert is_in_lines(written, 0, len(written))
        assert is_in_lines(content, 0, len(content)) == (written == content)


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each for each in (proxy, xclient, rspamd, recipients, mta_sts, token, conversion)
}
