import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.message import BodyType, Envelope, Recipient
from shadowrelay.model.values import replace
from shadowrelay.protocol.fields import (
    ARGUMENT_OCTETS_MAX,
    MAIL_PARAMETERS,
    MailCommand,
    MailValues,
    RcptCommand,
    domain_of,
    format_mail,
    format_rcpt,
    mail_values_of,
    parse_mail,
    parse_rcpt,
    recipient_of,
)
from tests.unit.protocol.strategies import ARRIVED, ID, refusal

BAD_SENDER = "501 5.1.7 Bad sender address syntax"
BAD_RECIPIENT = "501 5.1.3 Bad recipient address syntax"
BAD_PARAMETER = "501 5.5.4 Bad or repeated parameter"
NEEDS_SMTPUTF8 = "553 5.6.7 Non-ASCII addresses need the SMTPUTF8 parameter"
ENVELOPE = Envelope(ID, "a@b.example", (Recipient("c@d.example"),), ARRIVED)

GOOD = [
    "a@b",
    "a@b.example",
    "a.b-c_d+e=f/g!h#i$j%k&l'm*n?o^p`q{r|s}t~u@x-y.example",
    "A@B.EXAMPLE",
    '""@b.example',
    '"a b"@b.example',
    '"a>b@c,d;e\\"f\\\\g"@b.example',
    '"<>"@b.example',
    "a@[192.0.2.1]",
    "a@[IPv6:2001:db8::1]",
    "a@[ipv6:::ffff:192.0.2.1]",
    "a@1.2.3",
    "a@xn--bcher-kva.example",
    "l" * 64 + "@b.example",
    "a@" + ".".join(["d" * 63] * 3) + "." + "d" * 60,  # path: 256 octets with brackets
]
BAD = [
    "a",
    "@b",
    "a@",
    "a@b.",
    "a@.b",
    "a@b..c",
    ".a@b",
    "a.@b",
    "a..b@c",
    "a b@c",
    "a@b c",
    "a@-b",
    "a@b-",
    "a@b_c",
    "a@b@c",
    "a,b@c",
    "(a)@b",
    "a@(b)",
    '"a@b',
    'a"b@c',
    '"a"b@c',
    '"a"."b"@c',
    '"a\\"@b',
    "a@[1.2.3]",
    "a@[1.2.3.4.5]",
    "a@[256.0.0.1]",
    "a@[01.2.3.4]",
    "a@[]",
    "a@[IPv6:1]",
    "a@[IPv6:fe80::1%1]",
    "a@[IPv6:]",
    "a@[tag:x]",
    "a@[192.0.2.1",
    "a@192.0.2.1]",
    "<a@b>",
    "a@b\r",
    "a\n@b",
    "a\x00@b",
    "a@b\x7f",
    "a@b\x1b",
    '"a\tb"@c',
    '"\r\n"@c',
    "l" * 65 + "@b.example",
    "a@" + "d" * 64,
    "a@" + ".".join(["d" * 63] * 3) + "." + "d" * 61,
    "@x:",
    "@x,a@b",
    "@x a@b",
    "x:a@b",
    " a@b",
    "a@b ",
    "Postmaster",
]
GOOD_UTF8 = [
    "\u00fc@b.example",
    "a@b\u00fccher.example",
    '"\u00fc \u4f60"@b.example',
    "\u4f60\u597d@\u4f8b\u5b50.example",
    "\U0001f600@b.example",
]
BAD_UTF8 = ["\ud800@b.example", "a@\udcff.example", "a\u0085b@c", "\u4f60" * 22 + "@b", "a@" + "\u4f60" * 60 + "." + "\u4f60" * 40]

MAILS = [
    ("FROM:<>", MailCommand("", {})),
    ("FROM:<a@b>", MailCommand("a@b", {})),
    ("from:<a@b>  ", MailCommand("a@b", {})),
    ("FROM:<@x.example,@y:a@b> SIZE=1", MailCommand("a@b", {"SIZE": "1"})),
    ("FROM:<a@b> size=1000 Body=8bitmime SMTPUTF8", MailCommand("a@b", {"SIZE": "1000", "BODY": "8bitmime", "SMTPUTF8": ""})),
    ('FROM:<> ENVID=a+2Bb X-1=<x>:,@"', MailCommand("", {"ENVID": "a+2Bb", "X-1": '<x>:,@"'})),
    (
        "FROM:<a@b> XSHADOW=HOLD:6ba7b810-9dad-41d1-80b4-00c04fd430c8:1.1",
        MailCommand("a@b", {"XSHADOW": "HOLD:6ba7b810-9dad-41d1-80b4-00c04fd430c8:1.1"}),
    ),
]
RCPTS = [
    ("TO:<Postmaster>", RcptCommand("Postmaster", {})),
    ("to:<POSTMASTER> NOTIFY=NEVER", RcptCommand("POSTMASTER", {"NOTIFY": "NEVER"})),
    ("TO:<@x:a@b> ORCPT=rfc822;a@b", RcptCommand("a@b", {"ORCPT": "rfc822;a@b"}, has_source_route=True)),
]
BAD_VALUE = "501 5.5.4 Bad parameter value"
MAIL_SYNTAX = "501 5.5.4 Syntax: MAIL FROM:<address> [parameters]"
RCPT_SYNTAX = "501 5.5.4 Syntax: RCPT TO:<address> [parameters]"


@pytest.mark.parametrize("address", GOOD)
def test_a_good_address_is_a_good_sender_and_recipient(address):
    assert parse_mail(f"FROM:<{address}>").address == address
    assert parse_rcpt(f"TO:<{address}>").address == address


@pytest.mark.parametrize("address", BAD)
def test_a_bad_address_is_neither_sender_nor_recipient(address):
    assert refusal(parse_mail, f"FROM:<{address}>") == BAD_SENDER
    if address != "Postmaster":
        assert refusal(parse_rcpt, f"TO:<{address}>") == BAD_RECIPIENT


@pytest.mark.parametrize("address", GOOD_UTF8)
def test_utf8_passes_with_smtputf8_only(address):
    assert parse_mail(f"FROM:<{address}> SMTPUTF8").address == address
    assert parse_rcpt(f"TO:<{address}>", smtputf8=True).address == address
    assert refusal(parse_mail, f"FROM:<{address}> BODY=8BITMIME") == NEEDS_SMTPUTF8
    assert refusal(parse_rcpt, f"TO:<{address}>") == NEEDS_SMTPUTF8


@pytest.mark.parametrize("address", BAD_UTF8)
def test_octets_that_are_not_utf8_and_too_many_of_them_never_pass(address):
    assert refusal(parse_mail, f"FROM:<{address}> SMTPUTF8") == BAD_SENDER
    assert refusal(lambda text: parse_rcpt(text, smtputf8=True), f"TO:<{address}>") == BAD_RECIPIENT


@pytest.mark.parametrize(("argument", "command"), MAILS)
def test_mail_is_read(argument, command):
    assert parse_mail(argument) == command


@pytest.mark.parametrize(("argument", "command"), RCPTS)
def test_rcpt_is_read(argument, command):
    assert parse_rcpt(argument) == command


def test_nobody_is_no_recipient():
    assert refusal(parse_rcpt, "TO:<>") == BAD_RECIPIENT


@pytest.mark.parametrize(
    "argument",
    [
        "",
        "FROM",
        "FROM:",
        "FROM: <a@b>",
        "FROM <a@b>",
        "FROM :<a@b>",
        " FROM:<a@b>",
        "TO:<a@b>",
        "<a@b>",
        "FROM:<a@b> X=" + "y" * ARGUMENT_OCTETS_MAX,
    ],
)
def test_mail_without_its_form_is_refused(argument):
    assert refusal(parse_mail, argument) == MAIL_SYNTAX


@pytest.mark.parametrize("argument", ["", "TO:", "TO: <a@b>", "TO <a@b>", "FROM:<a@b>"])
def test_rcpt_without_its_form_is_refused(argument):
    assert refusal(parse_rcpt, argument) == RCPT_SYNTAX


@pytest.mark.parametrize(
    "argument", ["FROM:a@b", "FROM:<a@b", "FROM:<a@b>x", "FROM:<a@b>SIZE=1", "FROM:<>x", "FROM:<a@b>\tSIZE=1", "FROM:<a@b>>"]
)
def test_something_around_the_path_makes_it_bad(argument):
    assert refusal(parse_mail, argument) == BAD_SENDER
    assert refusal(parse_rcpt, argument.replace("FROM", "TO").replace("<>", "<a@b>")) == BAD_RECIPIENT


@pytest.mark.parametrize(
    "parameters", ["=1", "A=", "A=b=c", "-A=1", "A=1  B=2", "A\t=1", "A=\x01", "A=1 a=2", "A A", "A=1\r\nRSET", "\u00e9=1", "A_B=1"]
)
def test_bad_and_repeated_parameters_are_refused(parameters):
    assert refusal(parse_mail, f"FROM:<a@b> {parameters}") == BAD_PARAMETER
    assert refusal(parse_rcpt, f"TO:<a@b> {parameters}") == BAD_PARAMETER


def test_parameters_are_counted():
    words = [f"P{place}" for place in range(20)]

    assert len(parse_mail(f"FROM:<a@b> {' '.join(words)}").parameters) == 20
    assert refusal(parse_mail, f"FROM:<a@b> {' '.join(words)} Q") == "501 5.5.4 Too many parameters"


MAIL_VALUES = [
    ("", MailValues()),
    (" SIZE=12 BODY=8bitmime SMTPUTF8", MailValues(12, BodyType.EIGHT_BIT_MIME, smtputf8=True)),
    (" RET=hdrs ENVID=QQ314159 BODY=7BIT", MailValues(ret="hdrs", envid="QQ314159")),
    (f" SIZE={'9' * 20} XSHADOW=HOLD:x", MailValues(10**20 - 1)),
]
BAD_MAIL_VALUES = [
    "SIZE",
    "SIZE=-1",
    f"SIZE={'9' * 21}",
    "BODY",
    "BODY=BINARY",
    "SMTPUTF8=yes",
    "RET",
    "RET=NONE",
    f"ENVID={'x' * 101}",
]


@pytest.mark.parametrize(("written", "values"), MAIL_VALUES)
def test_the_values_of_known_parameters_are_kept_as_received(written, values):
    assert values == mail_values_of(parse_mail(f"FROM:<a@x.example>{written}").parameters, MAIL_PARAMETERS | {"XSHADOW"})


@pytest.mark.parametrize("written", BAD_MAIL_VALUES)
def test_a_bad_value_is_refused(written):
    parameters = parse_mail(f"FROM:<a@x.example> {written}").parameters

    assert "501 5.5.4 Bad parameter value" == refusal(mail_values_of, parameters, MAIL_PARAMETERS)


def test_a_parameter_that_was_not_offered_is_refused():
    assert "555 5.5.4 Parameter not recognized or not implemented" == refusal(mail_values_of, {"XSHADOW": "HOLD:x"}, MAIL_PARAMETERS)


def test_a_command_is_written_as_the_next_hop_can_take_it():
    envelope = replace(ENVELOPE, body=BodyType.EIGHT_BIT_MIME, smtputf8=True, ret="HDRS", envid="x")

    assert format_mail(envelope, 10, dsn=True) == "FROM:<a@b.example> SIZE=10 BODY=8BITMIME SMTPUTF8 RET=HDRS ENVID=x"
    assert format_mail(envelope, None, body=False) == "FROM:<a@b.example> SMTPUTF8"
    assert format_mail(replace(ENVELOPE, sender=""), 1, extra="XSHADOW=y") == "FROM:<> SIZE=1 XSHADOW=y"
    assert format_rcpt(Recipient("c@d", "NEVER", "rfc822;c@d"), dsn=True) == "TO:<c@d> NOTIFY=NEVER ORCPT=rfc822;c@d"
    assert format_rcpt(Recipient("c@d", "NEVER", "rfc822;c@d"), dsn=False) == "TO:<c@d>"


def test_a_control_character_is_never_written():
    with pytest.raises(ValueError, match="control character"):
        format_mail(replace(ENVELOPE, envid="x\r\nRSET"), 1, dsn=True)
    with pytest.raises(ValueError, match="control character"):
        format_rcpt(Recipient("a\n@b"), dsn=False)


@pytest.mark.parametrize("address", [*GOOD, *GOOD_UTF8])
def test_what_is_written_is_read_again(address):
    envelope = replace(ENVELOPE, sender=address, smtputf8=not address.isascii())

    assert parse_mail(format_mail(envelope, 10)).address == address
    assert parse_rcpt(format_rcpt(Recipient(address), dsn=True), smtputf8=True).address == address


@pytest.mark.parametrize(
    ("address", "domain"),
    [
        ("", ""),
        ("Postmaster", ""),
        ("a@B.Example", "b.example"),
        ('"a@x"@b', "b"),
        ("a@[IPv6:::1]", "[ipv6:::1]"),
        ("a@B\u00dccher.example", "xn--bcher-kva.example"),
        ("a@b\u00fccher\u3002example\u3002", "xn--bcher-kva.example"),
        ("a@b\uff43.example\uff0e", "bc.example"),
        ("a@b\u00fc-.example", "b\u00fc-.example"),
        ("a@" + "\u00fc" * 300, "\u00fc" * 300),
    ],
)
def test_domains_are_compared_in_lower_case_as_a_labels_where_they_have_them(address, domain):
    assert domain_of(address) == domain


@given(
    st.text(max_size=60)
    | st.lists(
        st.sampled_from(
            ["FROM:", "TO:", "<", ">", "@", "a", '"', "\\", " ", ".", "[", "]", ":", ",", "=", "\x00", "\r\n", "SMTPUTF8", "\u00fc"]
        )
    ).map("".join)
)
def test_any_text_is_read_or_refused_and_control_characters_never_pass(text):
    for parse, argument in [
        (parse_mail, text),
        (parse_rcpt, text),
        (parse_mail, f"FROM:<{text}"),
        (parse_mail, f"FROM:<a@b> {text}"),
        (parse_rcpt, f"TO:<{text}@b>"),
    ]:
        if refusal(parse, argument) is None:
            command = parse(argument)
            assert all(
                character.isprintable()
                for part in (command.address, *command.parameters.values())
                for character in part
                if ord(character) < 160
            )
    domain_of(text)


LENIENT = [
    ("john.@docomo.ne.jp", '"john."@docomo.ne.jp'),
    ("a..b@docomo.ne.jp", '"a..b"@docomo.ne.jp'),
    (".a@b.example", '".a"@b.example'),
    (".@b.example", '"."@b.example'),
    ("a.b@c.example", "a.b@c.example"),
    ('"a."@c.example', '"a."@c.example'),
]


@pytest.mark.parametrize(("written", "address"), LENIENT)
@pytest.mark.parametrize("space", ["", " ", "   "])
def test_what_devices_write_is_read_as_the_valid_address_that_means_the_same(written, address, space):
    assert MailCommand(address, {"SIZE": "1"}) == parse_mail(f"FROM:{space}<{written}> SIZE=1", lenient=True)
    assert RcptCommand(address, {}) == parse_rcpt(f"TO:{space}<{written}>", lenient=True)
    assert address == parse_mail(f"FROM:<{address}>").address
    assert address == parse_rcpt(f"TO:<{address}>").address


@pytest.mark.parametrize(
    ("argument", "lenient"),
    [
        ("TO:<@x.example:a@b.example>", False),
        ("TO:<@x.example,@y.example:a@b.example>", False),
        ("TO: @x.example:a.@b.example", True),
        ("TO:<<@x.example:a@b.example>>", True),
        ("TO:< \t@x.example:a@b.example>", True),
    ],
)
def test_a_source_route_is_dropped_and_told(argument, lenient):
    command = parse_rcpt(argument, lenient=lenient)

    assert (True, "@b.example") == (command.has_source_route, command.address[-10:])
    assert not parse_rcpt("TO:<a@b.example>", lenient=lenient).has_source_route


def test_the_null_sender_and_postmaster_may_have_their_space_too():
    assert "" == parse_mail("FROM: <>", lenient=True).address
    assert "Postmaster" == parse_rcpt("TO: <Postmaster>", lenient=True).address


@pytest.mark.parametrize(
    "written",
    ["a b.@c.example", "a.@", "a.@b..c", "a@b..", 'a"..b@c', "a,.@c", "l" * 481 + "@b.example", "a.@-b", "a.@b\r"],
)
def test_leniency_ends_at_what_nobody_could_pass_on(written):
    assert BAD_SENDER == refusal(lambda text: parse_mail(text, lenient=True), f"FROM:<{written}>")
    assert BAD_RECIPIENT == refusal(lambda text: parse_rcpt(text, lenient=True), f"TO:<{written}>")


LONG = "bounces+23091751-1e1a-some.person.with.a.long.name=customer-domain.test"


@pytest.mark.parametrize(
    ("written", "address"),
    [
        (f"<{LONG}@c.example>", f"{LONG}@c.example"),
        (f"<{'l' * 480}@c.example>", f"{'l' * 480}@c.example"),
        (f'<"{LONG} x"@c.example>', f'"{LONG} x"@c.example'),
        (f"<{LONG}@[192.0.2.1]>", f"{LONG}@[192.0.2.1]"),
        ("<a@c.example.>", "a@c.example"),
        ("<a@my_host._x.example>", "a@my_host._x.example"),
        ("<.a.@[192.0.2.1]>", '".a."@[192.0.2.1]'),
        ("a@c.example", "a@c.example"),
        ("\t <a@c.example>", "a@c.example"),
        ("< a@c.example\t>", "a@c.example"),
        ("<<a@c.example>>", "a@c.example"),
        ("<a@c.example>>", "a@c.example"),
        ("a@c.example>", "a@c.example"),
        ("<a@c.example>;", "a@c.example"),
        ("<a@c.example>,", "a@c.example"),
        ("a@c.example;", "a@c.example"),
        ("<a@b@c.example>", '"a@b"@c.example'),
        ("<a@b.example@c.example>", '"a@b.example"@c.example'),
        ("<SMTP:a@c.example>", '"SMTP:a"@c.example'),
        ("mailto:a@c.example", '"mailto:a"@c.example'),
    ],
)
@pytest.mark.parametrize("parameters", ["SIZE=1 RET=FULL", "  SIZE=1\t RET=FULL ", "\tSIZE=1 RET=FULL\t"])
def test_what_other_servers_take_is_read_where_the_connector_is_lenient(written, address, parameters):
    assert MailCommand(address, {"SIZE": "1", "RET": "FULL"}) == parse_mail(f"FROM:{written} {parameters}", lenient=True)
    assert RcptCommand(address, {}) == parse_rcpt(f"TO:{written}", lenient=True)
    assert RcptCommand(address, {}) == parse_rcpt(format_rcpt(Recipient(address), dsn=False), lenient=True)
    assert refusal(parse_mail, f"FROM:{written} {parameters}") in (MAIL_SYNTAX, BAD_SENDER, BAD_PARAMETER)


@pytest.mark.parametrize("blank", ["< >", "<\t>", "<<>>", "<>"])
def test_blanks_between_the_brackets_are_the_null_sender_where_the_connector_is_lenient(blank):
    assert MailCommand("", {"SIZE": "1"}) == parse_mail(f"FROM:{blank} SIZE=1", lenient=True)
    assert BAD_RECIPIENT == refusal(lambda text: parse_rcpt(text, lenient=True), f"TO:{blank}")


@pytest.mark.parametrize(
    "written", ["<@>", "<@@>", "<a@>", "<@b.example>", "<>a@b.example", "<>>", "<a@b.example", "<a@b,c@d>", "<a@b;c@d>", "Me <a@b>"]
)
def test_what_names_no_mailbox_is_refused_by_lenient_connectors_too(written):
    assert "501" == refusal(lambda text: parse_mail(text, lenient=True, takes_bare=True), f"FROM:{written}")[:3]
    assert "501" == refusal(lambda text: parse_rcpt(text, lenient=True, takes_bare=True), f"TO:{written}")[:3]


BARE = [("<root>", "root"), ("root", "root"), ("< root >", "root"), ("<www-data>;", "www-data"), ("<a..b>", '"a..b"'), ("<a%b!c>", "a%b!c")]


@pytest.mark.parametrize(("written", "address"), BARE)
def test_a_name_without_a_domain_is_one_where_it_may_be_left_out(written, address):
    assert MailCommand(address, {"SIZE": "1"}) == parse_mail(f"FROM:{written} SIZE=1", lenient=True, takes_bare=True)
    assert RcptCommand(address, {}) == parse_rcpt(f"TO:{written}", lenient=True, takes_bare=True)
    for takes_bare in (True, False):
        assert BAD_SENDER == refusal(lambda text: parse_mail(text, takes_bare=takes_bare), f"FROM:{written}")  # noqa: B023
    assert BAD_SENDER == refusal(lambda text: parse_mail(text, lenient=True), f"FROM:{written}")


@pytest.mark.parametrize("value", ["<>", "a@b.example", "a+40b", "", "x=y"])
def test_auth_of_mail_is_ignored_where_the_connector_is_lenient(value):
    parameters = parse_mail(f"FROM:<a@x.example> AUTH={value} SIZE=5", lenient=True).parameters

    assert MailValues(5) == mail_values_of(parameters, MAIL_PARAMETERS, lenient=True)
    assert "555 5.5.4 Parameter not recognized or not implemented" == refusal(mail_values_of, {"AUTH": "<>"}, MAIL_PARAMETERS)


def test_a_parameter_that_is_repeated_is_no_fault_if_it_says_the_same():
    assert {"SIZE": "5", "BODY": "7BIT"} == dict(parse_mail("FROM:<a@b> SIZE=5 BODY=7BIT size=5", lenient=True).parameters)
    assert BAD_PARAMETER == refusal(lambda text: parse_mail(text, lenient=True), "FROM:<a@b> SIZE=5 SIZE=6")
    assert BAD_PARAMETER == refusal(parse_mail, "FROM:<a@b> SIZE=5 SIZE=5")


def test_an_address_in_utf8_says_itself_what_it_needs_where_the_connector_is_lenient():
    assert MailCommand("ä@b.example", {"SMTPUTF8": ""}) == parse_mail("FROM:<ä@b.example>", lenient=True)
    assert RcptCommand("ä@b.example", {}) == parse_rcpt("TO:<ä@b.example>", lenient=True)
    assert MailCommand("a@b.example", {"SIZE": "5"}) == parse_mail("FROM:<a@b.example> SIZE=5", lenient=True)
    assert NEEDS_SMTPUTF8 == refusal(parse_mail, "FROM:<ä@b.example>")


def test_an_orcpt_in_utf8_of_the_wrong_kind_is_left_out_where_the_connector_is_lenient():
    assert Recipient("a@b") == recipient_of("a@b", {"ORCPT": "rfc822;ä@b"}, lenient=True)
    assert Recipient("a@b", orcpt="utf-8;\\x{E4}@b") == recipient_of("a@b", {"ORCPT": "utf-8;ä@b"}, lenient=True)


@pytest.mark.parametrize("blanks", [" ", "\t", " \t "])
def test_blanks_before_the_path_are_no_fault_where_the_connector_is_lenient(blanks):
    assert "a@b" == parse_mail(f"{blanks}FROM:<a@b>", lenient=True).address
    assert "Postmaster" == parse_rcpt(f"{blanks}TO:Postmaster{blanks}", lenient=True).address
    assert MAIL_SYNTAX == refusal(parse_mail, f"{blanks}FROM:<a@b>")


LABELS = [
    ("a+b@c.example", "a+2Bb@c.example"),
    ("a+2Bb@c.example", "a+2Bb@c.example"),
    ("a+2bb@c.example", "a+2Bb@c.example"),
    ("a+@c.example+", "a+2B@c.example+2B"),
    ("a+zz@c.example", "a+2Bzz@c.example"),
    ("SRS0=x=y=z=u@b.example", "SRS0+3Dx+3Dy+3Dz+3Du@b.example"),
    ("a++2B", "a+2B+2B"),
]


@pytest.mark.parametrize(("written", "passed_on"), LABELS)
def test_a_label_that_is_no_xtext_is_made_one_before_another_server_returns_the_message_for_it(written, passed_on):
    mail = parse_mail(f"FROM:<a@b> ENVID={written}", lenient=True).parameters
    rcpt = parse_rcpt(f"TO:<a@b> ORCPT=rfc822;{written}", lenient=True).parameters

    assert passed_on == mail_values_of(mail, MAIL_PARAMETERS, lenient=True).envid
    assert f"rfc822;{passed_on}" == recipient_of("a@b", rcpt, lenient=True).orcpt
    assert f"TO:<a@b> ORCPT=rfc822;{passed_on}" == format_rcpt(Recipient("a@b", None, f"rfc822;{written}"), dsn=True)  # from an older queue
    assert f"FROM:<a@b.example> ENVID={passed_on}" == format_mail(replace(ENVELOPE, envid=written), None, dsn=True)


def test_labels_and_words_that_mean_nothing_are_left_out_where_the_connector_is_lenient():
    parameters = {"ENVID": "x" * 101}
    rcpt = {"NOTIFY": "SUCCESS,,DELAY,SUCCESS,", "ORCPT": f"rfc822;{'+' * 200}"}

    assert MailValues() == mail_values_of(parameters, MAIL_PARAMETERS, lenient=True)
    assert Recipient("a@b", "SUCCESS,DELAY") == recipient_of("a@b", rcpt, lenient=True)
    assert Recipient("a@b") == recipient_of("a@b", {"ORCPT": "rfc822;"}, lenient=True)
    for orcpt in ("", "x@c.example", ";x"):
        assert BAD_VALUE == refusal(lambda value: recipient_of("a@b", {"ORCPT": value}, lenient=True), orcpt)


@pytest.mark.parametrize("argument", ["FROM :<a@b>", "FROM:<a@b", "FROM:<<a@b>", "FROM:a", "FROM: ", "FROM:"])
def test_other_freedoms_are_not_taken(argument):
    assert refusal(lambda text: parse_mail(text, lenient=True), argument) in (MAIL_SYNTAX, BAD_SENDER)


@given(st.from_regex(r"[a-z.]{1,20}", fullmatch=True), st.from_regex(r"[a-z]{1,9}(\.[a-z]{1,9})?", fullmatch=True))
def test_what_is_passed_on_is_always_valid(local, domain):
    address = parse_rcpt(f"TO: <{local}@{domain}>", lenient=True).address

    assert parse_rcpt(format_rcpt(Recipient(address), dsn=True)).address == address
    assert domain == domain_of(address)
