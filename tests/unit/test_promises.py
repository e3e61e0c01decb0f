"""What `check` says a configuration promises; patterns that never match; errors in our own words."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from shadowrelay.model.invalid import explanation_of
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.section import Section
from shadowrelay.model.settings import Settings
from shadowrelay.rules.router import covers
from shadowrelay.settings.configuration import load, warnings
from shadowrelay.settings.guarantees import promises

NODE = """
[server]
name = "mx1.east.example"
site = "east"
[[peers]]
name = "mx1.west.example"
site = "west"
address = "mx1.west.example:25"
[[receive_connectors]]
name = "in"
listen = "127.0.0.1:2525"
"""
TRANSPORT = NODE + "[transport]\n"
ROUTE = '[[routes]]\nrecipients = ["{}"]\nnext_hop = "{}"\n'
LINKS = "".join(f"[[site_links]]\nsites = {pair}\n" for pair in ('["east", "west"]', '["west", "london"]', '["london", "dublin"]'))
TO_DUBLIN = (
    '[[routes]]\nrecipients = ["*@dublin.example"]\nsite = "dublin"\n' + LINKS + '[[sites]]\nname = "west"\nhub_site_enabled = true\n'
)
CASES = (
    (NODE, "reject_message_on_shadow_failure = false means: if that fails for 5s, the message is accepted all the same"),
    (TRANSPORT + "reject_message_on_shadow_failure = true", "the message is refused (451), and the sender tries again"),
    (NODE, "A message is answered 250 when another server has a synced copy. It then survives the loss of any single server"),
    (TRANSPORT + "shadow_copies = 2", "when 2 other servers have synced copies. It then survives the loss of any 2 servers at once"),
    (
        NODE,
        "A copy counts only if its server runs on another machine than this one; a message without such a copy is accepted and reported",
    ),
    (TRANSPORT + "reject_message_on_shadow_failure = true", "on another machine than this one; a message without such a copy is refused"),
    (
        NODE.replace("[[peers]]", 'failure_domains = ["rack7"]\n[[peers]]', 1),
        "another machine, and has none of the labels rack7, than this one",
    ),
    (TRANSPORT + "shared_fate_is_redundant = true", "Mail that has no other copy is lost with the machine. It is for trying"),
    (TRANSPORT + "shadow_redundancy_enabled = false", "no copies are made. Mail on this server is lost with its disk"),
    (TRANSPORT + 'shadow_resubmit_time_span = "20m"', "If this server is silent for 20m"),
    (NODE, "After a cut of more than 3h recipients may get copied mail twice"),
    (NODE + 'redundancy = "previous-hop"', "If this server is lost, peers take back what they relayed to it"),
    (NODE + 'redundancy = "none"', 'redundancy = "none" means: mail is not copied. It is lost with this server\'s disk'),
    (
        NODE + 'redundancy = "previous-hop"',
        "is delivered or relayed, or after 30s, by best effort: until it is relayed, it is then lost with",
    ),
    (
        NODE + 'redundancy = "previous-hop"\nmax_acknowledgement_delay = "0s"',
        "mail is not copied, and until it is relayed it is lost with this server's disk",
    ),
    (NODE + 'redundancy = "both"', "A message without a copy is answered when it is delivered or relayed, or after 30s, by best effort"),
    (NODE + 'redundancy = "both"', "A message is answered 250 when another server has a synced copy"),
    (
        NODE + ROUTE.format("*@a.example", "mx1.west.example:25") + 'redundancy = "previous-hop"',
        "Mail for *@a.example stays here as a shadow until the next hop, if it is a peer, has handed it on. If that is silent for 3h",
    ),
    (
        TRANSPORT + "shadow_copies = 2\n" + ROUTE.format("*@a.example", "mx1.west.example:25") + 'redundancy = "previous-hop"',
        "is on this server and the next hop only, whatever shadow_copies says: it survives the loss of one of them, not of both at once",
    ),
    (
        NODE + 'redundancy = "previous-hop"\n[transport]\nshadow_redundancy_promotion = true',
        "after 30s a peer gets 5s to store a copy (shadow_redundancy_promotion), and if none does, it is given by best effort: until",
    ),
    (
        NODE + 'redundancy = "both"\n[transport]\nshadow_redundancy_promotion = true\nshadow_timeout = "7s"',
        "answered when it is delivered or relayed; after 30s a peer gets 7s to store a copy",
    ),
    (
        NODE + 'redundancy = "previous-hop"\n[transport]\nshadow_redundancy_promotion = true',
        "its peers deliver its mail of which they have copies; if it returns",
    ),
    (
        NODE + 'redundancy = "previous-hop"\nmax_acknowledgement_delay = "0s"\n[transport]\nshadow_redundancy_promotion = true',
        "mail is not copied, and until it is relayed it is lost with this server's disk",
    ),
    (
        NODE,
        "so all peers that name none belong to it, and copies also go to site west. Exchange without a DAG stays in one site",
    ),
    (NODE, "Nothing that this node delivers can be delivered again (shadowrelay safety-net resubmit): every next hop is outside"),
    (NODE + ROUTE.format("*@a.example", "a:25"), "Nothing that this node delivers can be delivered again"),
    (
        NODE + 'accepted_domains = ["a.example"]\n' + ROUTE.format("*@a.example", "a:25"),
        "What was delivered for *@a.example in the last 2d can",
    ),
    (
        NODE + 'accepted_domains = ["a.example"]\n' + ROUTE.format("*@a.example", "a:25") + "inside_boundary = false",
        "Nothing that this node delivers can be delivered again",
    ),
    (NODE + ROUTE.format("*@a.example", "a:25") + "inside_boundary = true", "What was delivered for *@a.example in the last 2d can"),
    (
        NODE + ROUTE.format("*@a.example", "mx1.west.example:25") + 'inside_boundary = true\nredundancy = "both"',
        "Nothing that this node delivers can be delivered again",
    ),
    (TRANSPORT + 'safety_net_hold_time = "0s"', "nothing that was delivered is kept, and nothing can be delivered again"),
    (TRANSPORT + 'delivery_without_lease = "defer"', "keeps copied mail until they answer"),
    (NODE, "At 127.0.0.1:2525 only peers are served"),
    (
        NODE + TO_DUBLIN,
        "Mail for *@dublin.example is delivered by site dublin by way of west and london, with a stop at west. From here it ",
    ),
    (NODE + TO_DUBLIN, "goes to mx1.west.example:25."),
    (NODE + TO_DUBLIN.replace('site = "dublin"', 'site = "west"'), "delivered by site west. From here it goes to mx1.west.example:25."),
    (
        NODE + TO_DUBLIN.replace('site = "dublin"', 'site = "east"'),
        "Mail for *@dublin.example goes where the MX records of their domains say",
    ),
    (
        NODE + 'relay_from = ["10.0.0.0/8"]\naccepted_domains = ["a.example"]',
        "10.0.0.0/8 may send to anywhere, and anybody may send to a.example",
    ),
    (
        NODE + 'proxy_from = ["10.0.0.1"]',
        "may name another client; the address that decides who may relay is that of the connection.",
    ),
    (
        NODE + 'proxy_from = ["10.0.0.1"]\nrelay_rights = "client"',
        "10.0.0.1/32 may name another client; the address that decides who may relay is the one named.",
    ),
    (
        NODE + 'filters = ["r"]\n[[filters]]\nname = "r"\naddress = "http://127.0.0.1"',
        "mail passes the filter r before its copy is made; without a verdict of it, it is deferred (451).",
    ),
    (NODE, "Mail for all recipients goes where the MX records"),
    (NODE + ROUTE.format("*@a.example", "a:25"), "Mail for *@a.example goes to a:25."),
    (NODE + ROUTE.format("*@a.example", "a:25"), "Mail for all other recipients goes where the MX records"),
    (NODE, "its sender is told of the delay after 4h, and gets it back after 2d"),
    (TRANSPORT + 'message_expiration_timeout = "2h"', "its sender gets it back after 2h"),
)


def settings_of(text: str, tmp_path: Path) -> Settings:
    path = tmp_path / "node.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, {}).settings


def problems_of(text: str, tmp_path: Path) -> str:
    """Empty for a valid configuration."""
    try:
        settings_of(text, tmp_path)
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("text", "part"), CASES)
def test_a_configuration_is_explained_in_sentences(text: str, part: str, tmp_path: Path) -> None:
    sentences = promises(settings_of(text, tmp_path))

    assert [True] == [part in sentence for sentence in sentences if part in sentence]
    assert all(sentence.endswith(".") and not re.search(r"\bNone\b|\[|timedelta", sentence) for sentence in sentences)


def test_a_connector_by_which_only_copies_come_does_not_say_whether_mail_is_copied(tmp_path: Path) -> None:
    clients, peers = (
        f'[[receive_connectors]]\nname = "{name}"\nlisten = "127.0.0.1:{port}"\n' for name, port in (("inbound", 2525), ("peers", 2555))
    )
    found = [
        settings_of(f'[server]\nname = "a.example"\nsite = "a"\n{clients}{grant}{way}{peers}{theirs}', tmp_path).copies_wanted
        for grant, way, theirs in (
            ('relay_from = ["10.0.0.0/8"]\n', 'redundancy = "previous-hop"\n', ""),
            ('relay_from = ["10.0.0.0/8"]\n', 'redundancy = "previous-hop"\n', 'redundancy = "both"\n'),
            ('relay_from = ["10.0.0.0/8"]\n', "", ""),
            ("", 'redundancy = "none"\n', ""),
        )
    ]

    assert [0, 1, 1, 1] == found


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "192.0.2.7"])
def test_peers_on_this_machine_only_are_warned_of(host: str, tmp_path: Path) -> None:
    text = TRANSPORT.replace("mx1.west.example:25", f"{host}:25").replace("127.0.0.1:2525", "192.0.2.7:2525")

    assert 1 == sum("so no copy is redundant" in line for line in warnings(settings_of(text, tmp_path)))
    assert not any("fate" in line for line in warnings(settings_of(text + "shared_fate_is_redundant = true", tmp_path)))
    elsewhere = '[[peers]]\nname = "c.example"\nsite = "c"\naddress = "198.51.100.1:25"\n'
    assert not any("so no copy is redundant" in line for line in warnings(settings_of(text + elsewhere, tmp_path)))


def test_without_redundancy_and_with_a_route_for_all_nothing_is_promised_that_does_not_hold(tmp_path: Path) -> None:
    text = " ".join(promises(settings_of(TRANSPORT + "shadow_redundancy_enabled = false\n" + ROUTE.format("*", "a:25"), tmp_path)))

    assert [False, False, False] == ["synced copy" in text, "peers deliver" in text, "MX" in text]


@pytest.mark.parametrize(
    "change",
    [
        ('site = "east"\n[[peers]]', 'site = "east"\nboundary = "default"\n[[peers]]'),  # somebody meant it
        ('site = "west"', 'site = "east"'),  # there is one site
        ("[[receive", '[transport]\nshadow_message_preference_setting = "LocalOnly"\n[[receive'),
        ("[[receive", "[transport]\nshadow_redundancy_enabled = false\n[[receive"),
    ],
)
def test_a_boundary_of_one_site_or_with_a_name_is_not_explained(change: tuple[str, str], tmp_path: Path) -> None:
    assert not [sentence for sentence in promises(settings_of(NODE.replace(*change), tmp_path)) if "No boundary is named" in sentence]


@pytest.mark.parametrize(
    ("pattern", "other", "expected"),
    [
        ("*", "*@a.example", True),
        ("*@a.example", "*@A.example", True),
        ("*@*.example", "*@a.example", True),
        ("*@a.example", "ann@a.example", True),
        ("ann@a.example", "*@a.example", False),
        ("*@a.example", "*@*.example", False),
        ("*@a.example", "*@b.example", False),
        ("a*@x.example", "*a@x.example", False),
    ],
)
def test_a_pattern_covers_another_if_everything_that_matches_that_matches_it(pattern: str, other: str, expected: bool) -> None:
    assert expected is covers(pattern, other)


def test_routes_in_their_order_are_not_warned_of(tmp_path: Path) -> None:
    text = NODE + 'externally_secured = ["127.0.0.1"]\naccepted_domains = ["a.example", "*.b.example"]\n'
    text += "".join(ROUTE.format(pattern, "a:25") for pattern in ("ann@a.example", "*@a.example", "*@*.b.example", "*"))

    assert [] == warnings(settings_of(text, tmp_path))


@pytest.mark.parametrize(
    ("listen", "host", "is_refused"),
    [
        ("127.0.0.1:2525", "127.0.0.1:2525", True),
        ("0.0.0.0:2525", "localhost:2525", True),
        ("0.0.0.0:2525", "127.0.0.7:2525", True),
        ("[::]:2525", "[::1]:2525", True),
        ("192.0.2.1:2525", "mx1.east.example:2525", True),
        ("mx1.east.example:2525", "mx1.east.example:2525", True),
        ("0.0.0.0:2525", "127.0.0.1:2526", False),
        ("0.0.0.0:2525", "[::1]:2525", False),
        ("192.0.2.1:2525", "127.0.0.1:2525", False),
        ("0.0.0.0:2525", "192.0.2.1:2525", False),
        ("127.0.0.1:0", "127.0.0.1:1", False),
    ],
)
def test_a_next_hop_is_refused_where_it_certainly_is_this_node(listen: str, host: str, is_refused: bool, tmp_path: Path) -> None:
    text = NODE.replace("127.0.0.1:2525", listen) + ROUTE.format("*", host)

    said = f"routes[0].next_hop: {host} is receive connector in of this node itself"

    assert is_refused is (said in problems_of(text, tmp_path))


@pytest.mark.parametrize(
    ("one", "other", "is_refused"),
    [
        ("127.0.0.1:2525", "127.0.0.1:2525", True),
        ("0.0.0.0:2525", "192.0.2.1:2525", True),
        ("[::]:2525", "[2001:db8::1]:2525", True),
        ("0.0.0.0:2525", "[::]:2525", False),
        ("127.0.0.1:2525", "127.0.0.2:2525", False),
        ("127.0.0.1:2525", "127.0.0.1:2526", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_two_connectors_that_could_not_both_listen_are_refused(one: str, other: str, is_refused: bool, tmp_path: Path) -> None:
    text = NODE.replace("127.0.0.1:2525", one) + f'[[receive_connectors]]\nname = "other"\nlisten = "{other}"\n'

    assert is_refused is (
        f"receive_connectors[1].listen: {other} is taken by receive connector in, which listens on {one}" in problems_of(text, tmp_path)
    )


def sections(section: type[Section]) -> list[type[Section]]:
    """All tables, each once."""
    found = [section]
    for field in section.model_fields.values():
        kinds = [field.annotation, *get_args(field.annotation)]
        found += [one for kind in kinds if isinstance(kind, type) and issubclass(kind, Section) for one in sections(kind)]
    return list(dict.fromkeys(found))


VALUES: tuple[Any, ...] = ("", " ", "x y", "ä" * 300, -1, 10**30, 1.5, True, None, [], [[]], [1], {}, {"a": []}, "nan", b"\xff")


@pytest.mark.parametrize("section", sections(Settings))
def test_no_wrong_value_is_explained_in_the_words_of_pydantic(section: type[Section]) -> None:
    explained = set()
    for name in section.model_fields:
        for value in VALUES:
            try:
                section.model_validate({name: value})
            except ValidationError as error:
                explained |= {explanation_of(one) for one in error.errors()}

    assert explained
    assert set() == {one for one in explained if re.search(r"(?i)input should|value error|pydantic|validat|instance|unable to parse", one)}
