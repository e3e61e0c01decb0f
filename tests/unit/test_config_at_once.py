"""All mistakes of a configuration are named in one go, each with the line on which it is, or its variable."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shadowrelay.cli.main import app
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.settings.configuration import load
from shadowrelay.settings.line_numbers import CHARACTERS_MAX, Lines

GOOD = """\
[server]
name = "mx1.east.example"
site = "east"

[[receive_connectors]]
name = "in"
listen = "127.0.0.1:2525"

[[peers]]
name = "mx1.west.example"
site = "west"
address = "mx1.west.example:2525"
"""
Find = Callable[..., list[str]]


@pytest.fixture
def find(tmp_path: Path) -> Find:
    """The problems of such a file, each without the directory."""

    def _find(text: str, **environ: str) -> list[str]:
        (tmp_path / "node.toml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigurationError) as caught:
            load(tmp_path / "node.toml", environ)
        return str(caught.value).replace(f"{tmp_path}/", "").splitlines()

    return _find


def heads(problems: list[str]) -> list[str]:
    """File, line and key of each, without the words."""
    return [re.sub(r"^(.*?: [\w.\[\]]+): .*", r"\1", problem) for problem in problems]


def test_a_problem_has_the_line_of_its_key_in_the_entry_of_the_list(find: Find) -> None:
    routes = """
[[routes]]
recipients = ["*@a.example"]
next_hop = "a.example"

[[routes]]  # the second
recipients = [
    "*@b.example",
    "b.example",  # [[routes]]
]
next_hop = "b.example"

[[routes]]
# recipients = ["*"]
next_hop = \"\"\"
[[routes]]
\"\"\"
inside_boundry = true
"""
    assert [
        "node.toml:19: routes[1].recipients[1]",
        "node.toml:25: routes[2].recipients",
        "node.toml:27: routes[2].next_hop",
        "node.toml:30: routes[2].inside_boundry",
    ] == heads(find(GOOD + routes))


def test_what_is_missing_has_the_line_of_its_table_or_none(find: Find) -> None:
    assert ["node.toml: server"] == heads(find("[admin]\n"))
    assert ["node.toml:3: server.site"] == heads(find('\n# x\n[server]\nname = "mx1"\n'))
    assert ["node.toml:2: peers[0].site", "node.toml:2: peers[0].address"] == heads(
        find('server = { name = "mx1", site = "east" }\npeers = [{ name = "a" }]\n')
    )


def test_line_ends_of_another_system_count_as_one(find: Find, tmp_path: Path) -> None:
    assert ["node.toml:4: server.sitt"] == heads(find(GOOD.replace('site = "east"\n', 'site = "east"\r\nsitt = "east"\r\n', 1)))


def test_a_long_file_gets_no_numbers_but_the_same_answers(find: Find) -> None:
    assert ["node.toml: server.sitt"] == heads(find("#" * CHARACTERS_MAX + '\n[server]\nname = "a"\nsite = "b"\nsitt = "c"\n'))


@pytest.mark.parametrize("newlines", range(4))
def test_each_line_is_found_wherever_it_stands(newlines: int) -> None:
    text = "\n" * newlines + "".join(f'[t{number}]\na = 1\n\nb = [\n1,\n]\nc = """\n[x]\n"""\n' for number in range(7)) + "[last]"
    lines = Lines(text)
    expected = text.split("\n")

    assert [f"[t{number}]" for number in range(7)] == [expected[(lines.of((f"t{number}",)) or 0) - 1] for number in range(7)]
    assert [newlines + 9 * number + 4 for number in range(7)] == [lines.of((f"t{number}", "b", 0)) for number in range(7)]
    assert [newlines + 9 * number + 7 for number in range(7)] == [lines.of((f"t{number}", "c")) for number in range(7)]
    assert newlines + 9 * 7 + 1 == lines.of(("last", "missing"))
    assert lines.of(("other",)) is None


def test_mistakes_of_all_kinds_are_named_together(find: Find) -> None:
    text = GOOD.replace('site = "east"', 'site = "east"\nsitt = "east"', 1)
    text += """
[[peers]]
name = "mx1.east.example"
site = "west"
address = "127.0.0.1:2525"

[[peers]]
name = "mx1.west.example"
site = "west"
address = "mx3.west.example:2525"
require_tls = true

[transport]
shadow_timeout = 5

[admin]
listen = "0.0.0.0:2525"
tls_listen = "127.0.0.1:2525"
"""
    assert [
        "node.toml:4: server.sitt",
        "node.toml:27: transport.shadow_timeout",
        "environment SHADOWRELAY_SENDD__NOPE: sendd",
        "node.toml:16: peers[1].name",
        "node.toml:21: peers[2].name",
        "node.toml:24: peers[2].require_tls",
        "node.toml:31: admin.tls_listen",
        "node.toml:30: admin.listen",
        "node.toml:31: admin.tls_listen",
        "node.toml:18: peers[1].address",
    ] == heads(find(text, SHADOWRELAY_SENDD__NOPE="1"))


def test_a_problem_of_values_together_names_the_variable_that_set_one(find: Find) -> None:
    assert ["environment SHADOWRELAY_PEERS__0__NAME: peers[0].name"] == heads(find(GOOD, SHADOWRELAY_PEERS__0__NAME="mx1.east.example"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD.replace('site = "west"', "site = 5") + '[[routes]]\nrecipients = ["*"]\nsite = "west"\n', "peers[0].site"),
        (GOOD.replace('name = "mx1.west.example"', 'name = "two words"'), "peers[0].name"),
        (GOOD.replace('"mx1.west.example:2525"', '"nowhere"'), "peers[0].address"),
        (GOOD.replace('site = "east"', "").replace('site = "west"', 'site = "east"'), "server.site"),
        (GOOD + "[tls]\ncertificate = 5\nkey = 5\n[admin]\ntls_listen = '127.0.0.1:8026'\n", "tls.certificate tls.key"),
        (GOOD + "[[tls]]\n[admin]\ntls_listen = '127.0.0.1:8026'\n", "tls"),
        (GOOD.replace('listen = "127', 'connection_timeout = "1m"\nlisten = "127'), "receive_connectors[0]"),
        (GOOD + '[[site_links]]\nsites = "west"\n[[routes]]\nrecipients = ["*"]\nsite = "west"\n', "site_links[0].sites"),
        (GOOD + '[[routes]]\nrecipients = ["*"]\nnext_hop = "a b"\n', "routes[0].next_hop"),
        ("peers = 5\n" + GOOD.partition("[[peers]]")[0] + '[[routes]]\nrecipients = ["*"]\nsite = "west"\n', "peers"),
    ],
)  # fmt: skip
def test_what_follows_from_another_mistake_is_not_a_problem_of_its_own(find: Find, text: str, expected: str) -> None:
    assert expected.split() == [head.partition(": ")[2] for head in heads(find(text))]


def test_check_names_wrong_files_and_values_together(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    (tmp_path / "token").write_text("short", encoding="utf-8")
    (tmp_path / "node.pem").write_text("", encoding="utf-8")
    text = GOOD.replace('site = "east"', 'site = "east"\ndata_directory = "node.pem"', 1) + "[transport]\nshadow_timeout = 5\n"
    file.write_text(
        f'{text}[tls]\ncertificate = "node.pem"\nkey = "node.key"\n[shipping]\ntarget = "http://x.example/"\n', encoding="utf-8"
    )

    result = CliRunner().invoke(app, ["check", "--config", str(file)])

    assert 2 == result.exit_code
    assert [
        "transport.shadow_timeout",
        "tls.key",
        "shipping.target",
        "server.data_directory",
        "admin.token_file",
    ] == [head.partition(": ")[2] for head in heads(result.output.replace("shadowrelay: ", "").splitlines())]
