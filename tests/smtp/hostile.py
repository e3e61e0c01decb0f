"""Malformed and hostile input, and the exact replies to it: over a connector alone, and over a node that is served."""

from tests.kit.receiving import HELLO

GREETED = b"EHLO client.example\r\n"
IN_MAIL = GREETED + b"MAIL FROM:<a@x.example>\r\n"
IN_RCPT = IN_MAIL + b"RCPT TO:<b@here.example>\r\n"
LONG = b"x" * 70_000

BARE_IN_CHUNK = "554 5.6.0 A CR or LF that is no line end needs BODY=BINARYMIME"
BARE = "521 5.5.2 Bare CR or LF is not allowed"
UNKNOWN = "500 5.5.1 Command not recognized"
TOO_LONG = "500 5.5.2 Command line too long"
BAD_SENDER = "501 5.1.7 Bad sender address syntax"
BAD_RECIPIENT = "501 5.1.3 Bad recipient address syntax"
MAIL_SYNTAX = "501 5.5.4 Syntax: MAIL FROM:<address> [parameters]"
RCPT_SYNTAX = "501 5.5.4 Syntax: RCPT TO:<address> [parameters]"
BAD_PARAMETER = "501 5.5.4 Bad parameter value"
GARBLED_PARAMETER = "501 5.5.4 Bad or repeated parameter"
UNKNOWN_PARAMETER = "555 5.5.4 Parameter not recognized or not implemented"
NO_UTF8 = "501 5.5.2 Argument is not UTF-8"
BAD_HELLO = "501 5.5.4 Syntax: EHLO or HELO, and your host name"
BAD_CHUNK = "501 5.5.4 Syntax: BDAT <size> [LAST]; closing connection"
OK = "250 2.0.0 OK"

CLOSED = "(closed)"
NOT_IMPLEMENTED = "502 5.5.1 Command not implemented"

COMMANDS: list[tuple[str, bytes, bytes, list[str]]] = [
    # name, what was said before, the input, the replies to it
    ("an empty line", b"", b"\r\n", [UNKNOWN]),
    ("a line of spaces", b"", b"   \r\n", [UNKNOWN]),
    ("a line of NULs", b"", b"\x00\x00\r\n", [UNKNOWN]),
    ("binary garbage", b"", b"\x80\xff\xfe\x16\x03\x01 \xff\r\n", [UNKNOWN]),
    ("a TLS handshake in plain", b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", [UNKNOWN]),
    ("a tab behind the verb", b"", b"NOOP\there\r\n", [OK]),
    ("a verb with a NUL", b"", b"NO\x00OP\r\n", [UNKNOWN]),
    ("a bare LF ends the command", b"", b"NOOP\nNOOP\r\n", [BARE, CLOSED]),
    ("a bare CR in the command", b"", b"NOOP a\rb\r\n", [BARE, CLOSED]),
    ("two CRs before the LF", b"", b"NOOP\r\r\n", [BARE, CLOSED]),
    ("LF CR at the end", b"", b"NOOP\n\rNOOP\r\n", [BARE, CLOSED]),
    ("a command over 512 octets", b"", b"NOOP " + b"x" * 506 + b"\r\nNOOP\r\n", [TOO_LONG, OK]),
    ("a command of 512 octets", b"", b"NOOP " + b"x" * 505 + b"\r\n", [OK]),
    ("a command over the read-ahead", b"", b"NOOP " + LONG + b"\r\nNOOP\r\n", [TOO_LONG, OK]),
    ("a command many times the read-ahead", b"", LONG * 10 + b"\r\nNOOP\r\n", [TOO_LONG, OK]),
    ("an unknown command is not echoed", b"", b"FROBNICATE <script>\r\n", [UNKNOWN]),
    ("an argument that is not UTF-8", b"", b"NOOP \xff\xfe\r\n", ["501 5.5.2 Argument is not UTF-8"]),
    ("EHLO without a name", b"", b"EHLO\r\n", [BAD_HELLO]),
    ("EHLO that would forge a trace header", b"", b"EHLO x\x0bwith(ESMTP);\r\n", [BAD_HELLO]),
    ("HELO with a name of 256 octets", b"", b"HELO " + b"a" * 256 + b"\r\n", [BAD_HELLO]),
    ("MAIL without an address", GREETED, b"MAIL\r\n", [MAIL_SYNTAX]),
    ("MAIL with a space before the colon", GREETED, b"MAIL FROM :<a@x.example>\r\n", [MAIL_SYNTAX]),
    ("MAIL with one bracket", GREETED, b"MAIL FROM:<a@x.example> <\r\n", [GARBLED_PARAMETER]),
    ("MAIL with a path that does not end", GREETED, b"MAIL FROM:<a@x.example\r\n", [BAD_SENDER]),
    ("MAIL without a domain", GREETED, b"MAIL FROM:<a>\r\n", [BAD_SENDER]),
    ("MAIL with two at signs", GREETED, b"MAIL FROM:<a@@>\r\n", [BAD_SENDER]),
    ("MAIL with a NUL in the address", GREETED, b"MAIL FROM:<a\x00@x.example>\r\n", [BAD_SENDER]),
    ("MAIL with an escape sequence", GREETED, b"MAIL FROM:<\x1b[2Ja@x.example>\r\n", [BAD_SENDER]),
    ("MAIL with an address of 491 octets", GREETED, b"MAIL FROM:<" + b"a" * 481 + b"@x.example>\r\n", [BAD_SENDER]),
    ("MAIL with two dots at the end of the domain", GREETED, b"MAIL FROM:<a@x.example..>\r\n", [BAD_SENDER]),
    ("MAIL with an open quote", GREETED, b'MAIL FROM:<"a@x.example>\r\n', [BAD_SENDER]),
    ("MAIL with a bad literal", GREETED, b"MAIL FROM:<a@[300.0.0.1]>\r\n", [BAD_SENDER]),
    ("MAIL with Latin-1", GREETED, "MAIL FROM:<ä@x.example>\r\n".encode("latin-1"), [NO_UTF8]),
    ("MAIL over its limit", GREETED, b"MAIL FROM:<a@x.example> ENVID=" + b"x" * 800 + b"\r\n", [TOO_LONG]),
    ("MAIL with an unknown parameter", GREETED, b"MAIL FROM:<a@x.example> FOO=bar\r\n", [UNKNOWN_PARAMETER]),
    ("MAIL with AUTH that was not offered", GREETED, b"MAIL FROM:<a@x.example> AUTH=<>\r\n", ["250 2.1.0 Sender OK"]),
    ("MAIL with SIZE twice", GREETED, b"MAIL FROM:<a@x.example> SIZE=1 SIZE=2\r\n", [GARBLED_PARAMETER]),
    ("MAIL with a SIZE that is none", GREETED, b"MAIL FROM:<a@x.example> SIZE=-1\r\n", [BAD_PARAMETER]),
    ("MAIL with SIZE of 21 digits", GREETED, b"MAIL FROM:<a@x.example> SIZE=" + b"9" * 21 + b"\r\n", [BAD_PARAMETER]),
    ("MAIL with a BODY that is none", GREETED, b"MAIL FROM:<a@x.example> BODY=BINARY\r\n", [BAD_PARAMETER]),
    ("MAIL with SMTPUTF8 and a value", GREETED, b"MAIL FROM:<a@x.example> SMTPUTF8=yes\r\n", [BAD_PARAMETER]),
    ("MAIL with RET of something", GREETED, b"MAIL FROM:<a@x.example> RET=NONE\r\n", [BAD_PARAMETER]),
    ("MAIL too big by its SIZE", GREETED, b"MAIL FROM:<a@x.example> SIZE=36000001\r\n", ["552 5.3.4 Message size exceeds the limit"]),
    ("RCPT with the null path", IN_MAIL, b"RCPT TO:<>\r\n", [BAD_RECIPIENT]),
    ("RCPT with FROM", IN_MAIL, b"RCPT FROM:<b@here.example>\r\n", [RCPT_SYNTAX]),
    ("RCPT with a pipe", IN_MAIL, b"RCPT TO:<|/bin/sh>\r\n", [BAD_RECIPIENT]),
    ("RCPT with a NOTIFY of contradictions", IN_MAIL, b"RCPT TO:<b@here.example> NOTIFY=NEVER,SUCCESS\r\n", [BAD_PARAMETER]),
    ("RCPT with an ORCPT without type", IN_MAIL, b"RCPT TO:<b@here.example> ORCPT=b@here.example\r\n", [BAD_PARAMETER]),
    ("RCPT with a parameter of MAIL", IN_MAIL, b"RCPT TO:<b@here.example> SIZE=1\r\n", [UNKNOWN_PARAMETER]),
    ("RCPT with Latin-1", IN_MAIL, "RCPT TO:<ä@here.example>\r\n".encode("latin-1"), [NO_UTF8]),
    ("RCPT through us by a route", IN_MAIL, b"RCPT TO:<@here.example:b@x.example>\r\n", ["550 5.7.1 Relaying denied"]),
    ("DATA with an argument", IN_RCPT, b"DATA now\r\n", ["501 5.5.4 No argument allowed"]),
    ("RSET with an argument", IN_RCPT, b"RSET now\r\n", ["501 5.5.4 No argument allowed"]),
    ("BDAT from a stranger, its octets not obeyed", IN_RCPT, b"BDAT 6\r\nQUIT\r\nNOOP\r\n", ["250 2.0.0 6 octets received", OK]),
    ("BDAT without a transaction", GREETED, b"BDAT 6 LAST\r\nQUIT\r\nNOOP\r\n", ["503 5.5.1 Need MAIL command first", OK]),
    ("BDAT with a bare LF", IN_RCPT, b"BDAT 6 LAST\r\nQU\nIT\nNOOP\r\n", [BARE_IN_CHUNK, OK]),
    ("BDAT with another word", IN_RCPT, b"BDAT 6 LASTS\r\nQUIT\r\n", [BAD_CHUNK, CLOSED]),
    ("BDAT with a word too many", IN_RCPT, b"BDAT 6 LAST LAST\r\nQUIT\r\n", [BAD_CHUNK, CLOSED]),
    ("BDAT with digits of another script", IN_RCPT, "BDAT \u0666 LAST\r\nQUIT\r\n".encode(), [BAD_CHUNK, CLOSED]),
    ("BDAT without a count", IN_RCPT, b"BDAT\r\nMAIL FROM:<smuggled@x.example>\r\n", [BAD_CHUNK, CLOSED]),
    ("BDAT with a negative count", IN_RCPT, b"BDAT -1\r\nQUIT\r\n", [BAD_CHUNK, CLOSED]),
    ("BDAT with a count of 40 digits", IN_RCPT, b"BDAT " + b"9" * 40 + b"\r\n", [BAD_CHUNK, CLOSED]),
    ("XSHADOW from a stranger", GREETED, HELLO.encode() + b"\r\n", ["502 5.5.1 Command not implemented"]),
    ("XQDISCARD from a stranger", GREETED, b"XQDISCARD 400\r\n", ["502 5.5.1 Command not implemented"]),
    ("MAIL with XSHADOW from a stranger", GREETED, b"MAIL FROM:<> XSHADOW=HOLD:1:1.1\r\n", [UNKNOWN_PARAMETER]),
    ("AUTH that was not offered", b"", b"AUTH PLAIN AGEAYg==\r\nNOOP\r\n", [NOT_IMPLEMENTED, OK]),
    ("AUTH with the longest response", GREETED, b"AUTH XOAUTH2 " + b"A" * 12_273 + b"\r\nNOOP\r\n", [NOT_IMPLEMENTED, OK]),
    ("AUTH within a transaction, and MAIL behind it", IN_RCPT, b"AUTH PLAIN " + b"A" * 600 + b"\r\nRCPT TO:<c@here.example>\r\n",
     [NOT_IMPLEMENTED, "250 2.1.5 Recipient OK"]),
    ("HTTP", b"", b"GET / HTTP/1.0\r\n\r\nMAIL FROM:<a@x.example>\r\n", ["421 4.7.0 This is not an HTTP server", CLOSED]),
    ("STARTTLS that is not offered, and more", GREETED, b"STARTTLS\r\nNOOP\r\n", ["502 5.5.1 Command not implemented", OK]),
    ("all in one write before the greeting", b"", IN_MAIL + b"QUIT\r\n",
     ["250-a.example~", "250 2.1.0 Sender OK", "221 2.0.0 Bye", CLOSED]),
    ("content behind a refused DATA", GREETED, b"DATA\r\nMAIL FROM:<s@x.example>\r\n",
     ["503 5.5.1 Need MAIL command first", "421 4.7.0 Protocol synchronization error", CLOSED]),
    ("quit in the middle of a transaction", IN_RCPT, b"QUIT\r\n", ["221 2.0.0 Bye", CLOSED]),
]  # fmt: skip

SMUGGLED = b"MAIL FROM:<smuggled@x.example>\r\nRCPT TO:<b@here.example>\r\nDATA\r\nevil\r\n.\r\n"

ENDINGS = [
    b"\n.\n",
    b"\r.\r",
    b"\n.\r\n",
    b"\r.\r\n",
    b"\r\n.\n",
    b"\r\n.\r",
    b"\n.\r",
    b"\r.\n",
    b"\r\n\x00.\n",
    b"\r\n.\r\r\n",
    b"\r\n.\n\r\n",
    b"\n\n.\r\n",
    b"\r\n\n.\r\n",
    b"\r\r\n.\r\n",
]
