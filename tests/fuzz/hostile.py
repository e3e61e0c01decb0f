"""At least 60 hostile inputs for each parser: what somebody would think of. What nobody thought of is in `corpus`."""

import json
from itertools import chain

from tests.smtp.proxies import BAD, GOOD, LOCAL, PROXY, TCP4, TCP6, UNIX, UNSPEC, addresses, tlv, version_1, version_2

LONG = b"x" * 50_000


def cut(octets: bytes, count: int) -> list[bytes]:
    """Cut short at so many places."""
    return [octets[: len(octets) * place // count] for place in range(count)]


def bent(octets: bytes, count: int) -> list[bytes]:
    """With an octet that is another one, at so many places."""
    places = [len(octets) * place // count for place in range(count)]
    return [octets[:place] + bytes((octets[place] ^ 0x80,)) + octets[place + 1 :] for place in places]


def objects(*values: object) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


ANY = [b"", b"\0", b"\xff\xfe", b"\r\n", b"\n", b"\r", LONG, b"\0" * 50_000, "\u202e\u2028".encode(), b"%s%n{}" * 10, b"[" * 30_000]

V2 = version_2(family=TCP6, body=addresses("2001:db8:1::5") + tlv(0x20, b"\x01" + b"\0" * 4 + tlv(0x21, b"TLSv1.3")))
PROXIES = [
    *(case[1] for case in chain(BAD, GOOD)),
    *cut(V2, 12),
    *bent(V2, 12),
    *(version_2(command, family, b"") for command in (LOCAL, PROXY, 0x2F, 0x11, 0xFF) for family in (TCP4, TCP6, UNIX, UNSPEC, 0xFF)),
    *(version_2(length=length) for length in (0, 1, 11, 13, 4_097, 65_535)),
    version_1("203.0.113.5", 65_536),
    version_1("::ffff:203.0.113.5"),
    version_1("fe80::1%eth0"),
    version_1() * 2,
    V2 * 2,
    b"PROXY UNKNOWN " + b"f" * 92 + b"\r\n",
]

ATTRIBUTES = b"ADDR=203.0.113.5 PORT=40000 NAME=c.example HELO=c.example PROTO=ESMTP LOGIN=u"
CLIENTS = [
    ATTRIBUTES,
    *cut(ATTRIBUTES, 12),
    *bent(ATTRIBUTES, 8),
    *(
        b"ADDR=" + address
        for address in (
            b"",
            b"IPV6:",
            b"IPV6:::1",
            b"IPV6:203.0.113.5",
            b"::ffff:10.0.0.1",
            b"fe80::1%eth0",
            b"1.2.3",
            b"01.2.3.4",
            b"300.1.1.1",
            b"[UNAVAILABLE]",
            b"[unavailable]",
            b"[TEMPUNAVAIL]",
            b"localhost",
            b"1.2.3.4,5.6.7.8",
            b"0x7f.1",
            b"2130706433",
            b"+31.2.3.4",
        )
    ),
    *(b"PORT=" + port for port in (b"0", b"65535", b"65536", b"-1", b"+1", b"1_0", b"99999999999999999999", b"\xd9\xa1", b"1.0")),
    *(b"HELO=" + name for name in (b"a+20b", b"a+0D+0Ab", b"a+00b", b"+", b"+0", b"+ZZ", b"+C3", b"+C3+A4", b"+E2+80+AE", b"x" * 300)),
    *(b"NAME=" + name for name in (b"a..b", b"-", b"[1.2.3.4]", b"a+3Db", b"xn--", "\u00e4.example".encode(), b"x" * 256)),
    *(b"PROTO=" + name for name in (b"SMTP", b"smtp", b"HTTP", b"ESMTP+20x", b"")),
    b"ADDR=1.2.3.4 ADDR=1.2.3.4",
    b"BY=1.2.3.4",
    b"NOTHING=1",
    b"ADDR",
    b"=1.2.3.4",
    b"ADDR = 1.2.3.4",
    b" ADDR=1.2.3.4 ",
    b"ADDR=1.2.3.4\tPORT=1",
    b"ADDR=1.2.3.4\r\nRCPT TO:<x@y>",
    " ADDR=1.2.3.4\u00a0PORT=1".encode(),
    b"addr=1.2.3.4 helo=x",
    b"LOGIN=" + b"+2B" * 200,
]

VERDICT = {
    "action": "add header",
    "score": 7.5,
    "milter": {"add_headers": {"X-A": {"value": "b", "order": 1}}, "remove_headers": {"Subject": 1}},
}


def milter(**words: object) -> dict[str, object]:
    return {"action": "no action", "score": 1, "milter": words}


VERDICTS = [
    *objects(
        VERDICT,
        *(
            {"action": action}
            for action in (
                "no action",
                "reject",
                "soft reject",
                "greylist",
                "add header",
                "rewrite subject",
                "discard",
                "quarantine",
                "custom",
                "",
                "REJECT",
                1,
                None,
                [],
            )
        ),
    ),
    *cut(json.dumps(VERDICT).encode(), 8),
    *bent(json.dumps(VERDICT).encode(), 8),
    *objects(*({"action": "no action", "score": score} for score in (-1, 1e308, "7", None, True, [], 10**400))),
    *(b'{"action":"no action","score":%s}' % score for score in (b"NaN", b"Infinity", b"1e999", b"9" * 5_000)),
    *objects(
        *(
            {"action": "reject", "messages": messages}
            for messages in (
                {"smtp_message": "no\r\n250 ok"},
                {"smtp_message": ""},
                {"smtp_message": "\u202e" * 300},
                {"smtp_message": 5},
                [],
                "x",
                {"smtp_message": "\ud800"},
            )
        ),
        *(milter(add_headers={name: "x"}) for name in ("", "A B", "A:", "A\r\nB", "\u00e4", "x" * 200, "Bcc", "Received", "A\0")),
        *(
            milter(add_headers={"X": value})
            for value in (
                "",
                " ",
                "\r\n",
                "\r\n\r\nbody",
                "a\r\nb",
                "a\r\n b",
                "\n\n x",
                "\t",
                "a\rb",
                "\0",
                "\x1b[2J",
                "\ud800",
                "\u00e4" * 400,
                "x" * 999,
                "x" * 998,
                ["a", "b"],
                [],
                [[]],
                {"value": "a"},
                {"value": "a", "order": -1},
                {"value": "a", "order": 10**30},
                {"value": 5},
                5,
                None,
                True,
                " \n \n ",
                "a\n\n",
                "a\n\tb\n c",
            )
        ),
        *(milter(remove_headers={"Subject": which}) for which in (0, 1, -1, 10**30, -(10**30), 1.5, "1", True, None, [])),
        *(
            {"action": "rewrite subject", "subject": subject}
            for subject in ("x", "", "\u00e4" * 100, "a\r\nBcc: x", "\0", "\ud800", "x" * 2_000, 5)
        ),
        *(
            {"action": "no action", "dkim-signature": value}
            for value in ("v=1; a=b", "v=1;\r\n a", "", ["v=1", "v=2"], {}, 5, "v=1\r\n\r\nx", "a\x0bb")
        ),
    ),
]

LISTS = [
    *(
        entry
        for entry in (
            b"a@x.example",
            b"@x.example",
            b"*@x.example",
            b"a@x.example # comment",
            b"a@x.example#no",
            b"# only",
            b"\xef\xbb\xbfa@x.example",
            b"a@",
            b"@",
            b"*",
            b"a",
            b"a@b@c",
            b"a b@x.example",
            b"<a@x.example>",
            b"a@x.example,b@x.example",
            b'"a b"@x.example',
            b'"a\\"@x.example',
            b'"unended@x.example',
            b"a@[1.2.3.4]",
            b"a@[IPv6:::1]",
            b"a@[",
            b"a@x.example.",
            b"a@.x",
            b"a@x..y",
            b"a@-x",
            "\u00e4@x.example".encode(),
            "a@\u00e4.example".encode(),
            "a@\u0660.example".encode(),
            b"a@xn--a.example",
            b"a@xn--\xc3\xa4",
            b"A@X.EXAMPLE",
            b"a+b@x.example",
            b"+@x.example",
            b"++@x",
            b"a+@x",
            b"a@x.example\r",
            b"a@x.example\r\nb@x.example",
            b"a@x.example\0",
            b"a\x0b@x.example",
            b"a@x\x85b@y",
            "a@x.example\u2028b@y.example".encode(),
            "a@\u3002".encode(),
            "a@x\u3002".encode(),
            "\u00df@stra\u00dfe.example".encode(),
            b"a@" + b"x" * 990,
            b"a" * 1_000 + b"@x",
            b"%s@x",
            b"a@%s",
            b"!a@x",
            b"a!b@x",
            b"a%b@x",
            b"#a@x",
            b" a@x ",
            b"\ta@x\t",
            b"a@x\n\n\n",
            b"\n" * 1_000,
            b"a@x\n" * 1_000,
            b"a@x\n!",
            b"a@ x",
            b"a @x",
            b"a@x#",
            b"a@#x",
            "\u202ea@x".encode(),
            b"a@x\xff",
            b"*a@x",
            b"*@*",
            b"*@*.x",
            b"@*.x.example",
        )
    ),
]

POLICY = b"version: STSv1\r\nmode: enforce\r\nmx: mail.example.com\r\nmx: *.example.net\r\nmax_age: 604800\r\n"
POLICIES = [
    POLICY,
    *cut(POLICY, 10),
    *bent(POLICY, 10),
    *(
        POLICY.replace(b"604800", age)
        for age in (b"0", b"-1", b"1e3", b"31557600", b"31557601", b"9" * 40, b"", b"\xd9\xa1", b"1_0", b"0x10", b" 1 ", b"1;")
    ),
    *(
        POLICY.replace(b"enforce", mode)
        for mode in (b"testing", b"none", b"", b"Enforce", b"enforce ", b"enforce\t", b"enforce\0", b"report")
    ),
    *(
        POLICY.replace(b"mail.example.com", name)
        for name in (
            b"",
            b"*",
            b"*.",
            b"*.*.x",
            b"a.*.x",
            b".x",
            b"x.",
            b"-x",
            b"x-",
            b"a_b.x",
            b"a b",
            b"[1.2.3.4]",
            b"1.2.3.4",
            "\u00e4.x".encode(),
            b"xn--4ca.x",
            b"a" * 64 + b".x",
            b"a." * 126 + b"x",
            b"a." * 127 + b"x",
            b"*." + b"a." * 125 + b"x",
            b"A.X",
            b"a..b",
            b"a\0b",
        )
    ),
    POLICY.replace(b": ", b":"),
    POLICY.replace(b": ", b" : "),
    POLICY.replace(b"\r\n", b"\r"),
    POLICY.replace(b"\r\n", b"\n\n"),
    POLICY * 2,
    POLICY + b"mx: a.b\r\n" * 200,
    b"\xef\xbb\xbf" + POLICY,
    POLICY + b"extension: " + LONG,
    b"v=STSv1; id=1;",
    b"1;id=2",
    b"1; id=2; id=3",
    b'a" "b',
]

TOKEN = {"access_token": "ya29.x", "token_type": "Bearer", "expires_in": 3600}
TOKENS = [
    *objects(
        TOKEN,
        *(
            TOKEN | {"access_token": value}
            for value in (
                "",
                None,
                5,
                [],
                {},
                True,
                "a b",
                "a\r\nMAIL FROM:<>",
                "a\0",
                "\u00e4",
                "\ud800",
                "x" * 8_192,
                "x" * 8_193,
                "\x01",
                "a=b",
                "\u202e",
            )
        ),
        *(TOKEN | {"token_type": value} for value in ("bearer", "BEARER", "mac", "", None, 5, [], "bearer ", "\u212aearer")),
        *(
            TOKEN | {"expires_in": value}
            for value in (
                0,
                -1,
                1,
                1e-300,
                1e300,
                10**400,
                "3600",
                "-1",
                "1e3",
                "",
                " 1",
                "\u0661",
                None,
                True,
                False,
                [],
                {},
                3599.5,
                "9" * 40,
            )
        ),
        {},
        [],
        "ya29",
        5,
        None,
        [TOKEN],
        {"error": "invalid_grant"},
        {"error": 5, "error_description": [1]},
        {"access_token": {"access_token": "x"}},
    ),
    *(b'{"access_token":"x","expires_in":%s}' % seconds for seconds in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5_000)),
    *cut(json.dumps(TOKEN).encode(), 8),
    *bent(json.dumps(TOKEN).encode(), 8),
    b'{"access_token":"x","access_token":"y"}',
    b'{"a":' * 20_000,
    json.dumps(TOKEN).encode() * 2,
    json.dumps(TOKEN).encode("utf-16"),
    b"\xef\xbb\xbf" + json.dumps(TOKEN).encode(),
]

MULTIPART = (
    b'Content-Type: multipart/mixed; boundary="b"\r\nContent-Transfer-Encoding: binary\r\n\r\n'
    b"pre\r\n--b\r\nContent-Type: image/png\r\n\r\n\0\n\r\r\n--b\r\n\r\ntext\r\n--b--\r\nepilogue"
)
ENCODED = b"Content-Transfer-Encoding: %s\r\n\r\n\0\n"
CONTENTS = [
    MULTIPART,
    *cut(MULTIPART, 14),
    *bent(MULTIPART, 14),
    *(
        ENCODED % encoding
        for encoding in (
            b"base64",
            b"quoted-printable",
            b"binary",
            b"BINARY (x)",
            b"(x) binary",
            b"(((",
            b"x",
            b"",
            b"7bit; x",
            b"\r\n binary",
        )
    ),
    *(
        b"Content-Type: " + kind + b"\r\n\r\n\0"
        for kind in (
            b"multipart/mixed",
            b"multipart/mixed; boundary=",
            b"multipart/signed; boundary=b",
            b"multipart/mixed; boundary*0=a; boundary*1=b",
            b"multipart/mixed; boundary*=utf-8''%00",
            b'multipart/mixed; boundary="\\""',
            b"message/rfc822",
            b"message/partial",
            b"message/global",
            b"message/delivery-status",
            b"text",
            b"/",
            b";",
            b"text/plain; charset=\xff",
            b"multipart/" + b"x" * 900,
            b"multipart/mixed; boundary=(.*)+",
        )
    ),
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n" * 3_000 + b"\0",
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\n" * 60 + b"\0",
    b"Content-Type: message/rfc822\r\n\r\n" * 60 + b"\0",
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b--\r\n--b--\r\n--b\r\n\0",
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b" + b" " * 5_000 + b"\r\n\0",
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--bb\r\n\r\n\0\r\n--b\r\n\r\n\0\r\n--b-\r\n",
    b"Content-Type: multipart/digest; boundary=b\r\n\r\n--b\r\n\r\n\r\n\0\r\n--b--",
    b" folded\r\n\r\n\0",
    b": x\r\n\r\n\0",
    b"X\r\n\r\n\0",
    b"X: \xc3\xa4\r\n\r\n\n",
    b"\r\n" + LONG,
    b"Content-Type: a/b\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\n\0\r\n--b--",
]

INPUTS: dict[str, list[bytes]] = {
    name: [*ANY, *inputs]
    for name, inputs in {
        "proxy": PROXIES,
        "xclient": CLIENTS,
        "rspamd": VERDICTS,
        "recipients": LISTS,
        "mta_sts": POLICIES,
        "token": TOKENS,
        "conversion": CONTENTS,
    }.items()
}
