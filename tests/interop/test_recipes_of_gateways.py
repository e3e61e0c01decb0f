"""docs/setup.md "An Internet gateway" and "An office relay", typed as printed on servers with the programs of Debian."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.interop.gateways import a_mail_store, messages, put_in_place, tracked, waiting
from tests.kit.clock import until
from tests.kit.pages import OPERATORS
from tests.kit.servers import obstacle, servers

pytestmark = [pytest.mark.interop, pytest.mark.heavy, pytest.mark.timeout(1200)]

OUTSIDE, CLIENT = "outside.example", "203.0.113.9"
GATEWAY = {
    "mx.corp.example": "192.0.2.10", "gw1.corp.example": "192.0.2.11", "gw2.corp.example": "192.0.2.12",
    "mailstore.corp.example": "192.0.2.20", "admin.corp.example": "192.0.2.90", OUTSIDE: CLIENT,
}  # fmt: skip
OFFICE = {
    "relay1.corp.example": "192.0.2.31", "relay2.corp.example": "192.0.2.32", "smtp.provider.example": "198.51.100.25",
    "admin.corp.example": "192.0.2.90", "scanner.corp.example": "192.0.2.70",
}  # fmt: skip
# what rspamd would ask the Internet about, and the compiler that costs it a minute
QUICK = ("rbl", "fuzzy_check", "asn", "redis", "neural", "phishing", "surbl", "spf", "dmarc", "arc", "dkim", "mx_check", "url_redirector")
QUICK_OPTIONS = 'disable_hyperscan = true;\ndns { nameserver = ["127.0.0.1:9"]; timeout = 0.1s; retransmits = 1; }\n'
IS_READY = "until curl -sf http://127.0.0.1:11333/ping; do sleep 0.5; done"
SCANNED = r"""curl -s http://127.0.0.1:11334/stat | sed 's/.*"scanned":\([0-9]*\).*/\1/'"""
DOVECOT = """
protocols =
ssl = no
auth_mechanisms = plain login
passdb {
  driver = passwd-file
  args = scheme=PLAIN /etc/dovecot/users
}
userdb {
  driver = static
  args = uid=65534 gid=65534 home=/nonexistent
}
service auth {
  unix_listener /var/spool/postfix/private/auth {
    mode = 0666
  }
}
"""


def printed(heading: str) -> Iterator[tuple[str, str]]:
    """The blocks of a section: where each is typed, and what."""
    section = OPERATORS.partition(f"\n{heading}\n")[2].partition("\n### ")[0]
    for block in re.findall(r"(?ms)^( *```\n.*?)^ *```$", section):
        lines = textwrap.dedent(block).splitlines()[1:]
        assert lines[0].startswith("# "), block
        yield re.sub(r"^# (on|in|from) ", "", lines[0]), "\n".join(lines[1:])


@pytest.mark.skipif(bool(why := obstacle(["haproxy", "rspamd", "postfix", "swaks", "curl"])), reason=why)
async def test_an_internet_gateway_works_as_it_is_written() -> None:
    with servers(GATEWAY) as found:
        nodes = {name: found[name] for name in ("gw1", "gw2")}
        for node in nodes.values():
            for name in QUICK:
                node.writes(f"/etc/rspamd/local.d/{name}.conf", "enabled = false;\n")
            node.writes("/etc/rspamd/local.d/options.inc", QUICK_OPTIONS)
        store, admin, outside = found["mailstore"], found["admin"], found["outside"]
        a_mail_store(store)

        blocks = printed("### An Internet gateway")
        place, script = next(blocks)
        assert "the administrator's machine" == place
        told = admin.types(script)
        place, script = next(blocks)
        assert "each gateway" == place
        for node in nodes.values():
            node.types(script)
        place, script = next(blocks)
        assert "mailstore.corp.example" == place
        store.types(script)
        put_in_place(told, admin, nodes)
        for node in nodes.values():
            node.types(IS_READY, seconds=600)  # of a processor it takes twenty
            node.types("shadowrelay doctor --config /etc/shadowrelay/node.toml")
        place, script = next(blocks)
        assert "mx.corp.example" == place
        found["mx"].types(script)
        place, script = next(blocks)
        assert "outside" == place
        said = outside.types(f"until bash -c '</dev/tcp/mx.corp.example/25'; do sleep 0.2; done\n{script}")
        refusals = re.findall(r"(?m)^<\*\* +(\S+ \S+)", said)
        await until(lambda: len(messages(store, "bob")) == 1, 60)

        assert ["550 5.1.1", "550 5.7.1"] == refusals, said

        place, script = next(blocks)
        assert "each gateway" == place
        for node in nodes.values():
            node.types(script)
        place, script = next(blocks)
        assert "outside" == place
        assert "250 2.0.0 Queued as" in outside.types(script)
        first = next(name for name, node in nodes.items() if waiting(node))
        survivor = nodes["gw2" if first == "gw1" else "gw1"]
        scanned = survivor.types(SCANNED)
        place, script = next(blocks)
        assert "the gateway that has it" == place
        nodes[first].types(script)
        place, script = next(blocks)
        assert "the other gateway" == place
        survivor.types(script)
        assert [] == list(blocks)
        await until(lambda: len(messages(store, "bob")) == 2, 120)
        (taken_over,) = (text for text in messages(store, "bob") if "Subject: taken over" in text)
        trace = survivor.types("shadowrelay messages find --to bob --config /etc/shadowrelay/node.toml")

        assert re.search(rf"Received: from \S+ \(\S+ \[{CLIENT}\]\)", taken_over), taken_over
        assert f"by {first}.corp.example" in taken_over
        assert 1 == taken_over.count("\nX-Spamd-Result:"), taken_over
        assert scanned == survivor.types(SCANNED), "it was not filtered again"
        assert "bob@corp.example" in trace


@pytest.mark.skipif(bool(reason := obstacle(["dovecot", "postfix", "swaks"])), reason=reason)
async def test_an_office_relay_works_as_it_is_written(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("smtp.provider.example")
    with servers(OFFICE) as found:
        nodes = {name: found[name] for name in ("relay1", "relay2")}
        provider, admin, office = found["smtp"], found["admin"], found["scanner"]
        for node in nodes.values():  # as those of real providers are
            with node.path("/etc/ssl/certs/ca-certificates.crt").open("ab") as file:
                file.write(authority.cert_pem.bytes())
        provider.writes("/etc/ssl/private/host.pem", (issued.private_key_and_cert_chain_pem).bytes().decode())
        provider.writes("/etc/dovecot/dovecot.conf", DOVECOT)
        provider.writes("/etc/dovecot/users", "corp:{PLAIN}correct horse\n")
        login = [
            "smtpd_tls_chain_files=/etc/ssl/private/host.pem", "smtpd_tls_security_level=may", "smtpd_tls_auth_only=yes",
            "smtpd_sasl_auth_enable=yes", "smtpd_sasl_type=dovecot", "smtpd_sasl_path=private/auth",
            "smtpd_relay_restrictions=permit_sasl_authenticated,reject", "smtpd_client_restrictions=permit_sasl_authenticated,reject",
        ]  # fmt: skip
        a_mail_store(provider, "virtual_alias_domains=example.org", "virtual_alias_maps=static:bob@corp.example", *login)
        provider.types("postconf -M 'submission/inet=submission inet n - n - - smtpd' && postfix reload")
        provider.types("systemctl start dovecot; until [ -S /var/spool/postfix/private/auth ]; do sleep 0.1; done")

        blocks = printed("### An office relay")
        place, script = next(blocks)
        assert "the administrator's machine" == place
        told = admin.types(script)
        place, script = next(blocks)
        assert "the administrator's machine" == place
        admin.types(f"{{\n{script}\n}} <<< 'correct horse'")
        put_in_place(told, admin, nodes)
        for node in nodes.values():
            node.types("shadowrelay doctor --config /etc/shadowrelay/node.toml")
        place, script = next(blocks)
        assert "the office" == place
        assert [] == list(blocks)
        office.types(script)
        await until(lambda: len(messages(provider, "bob")) == 1, 60)
        await until(lambda: "S:Auth=PLAIN corp" in tracked(nodes["relay1"]), 60)

        # a wrong password, and a takeover while the mail waits
        for node in nodes.values():
            node.types("echo wrong > /etc/shadowrelay/secret && systemctl reload shadowrelay")
        # a session that has logged in is good for what comes while it is kept
        await until(lambda: not nodes["relay1"].types("ss -Htn state established '( dport = :587 )'"), 60)
        office.types(script)
        await until(lambda: "535" in nodes["relay1"].types("shadowrelay queue list --config /etc/shadowrelay/node.toml"), 120)
        nodes["relay1"].types("systemctl kill --signal KILL shadowrelay && rm -r /var/lib/shadowrelay/data && systemctl start shadowrelay")
        await until(lambda: waiting(nodes["relay2"]), 120)
        for node in nodes.values():
            node.types("echo 'correct horse' > /etc/shadowrelay/secret")
        nodes["relay2"].types("shadowrelay queue retry --all --config /etc/shadowrelay/node.toml", None)
        await until(lambda: len(messages(provider, "bob")) == 2, 120)
        await until(lambda: "S:Auth=PLAIN corp" in tracked(nodes["relay2"]), 60)

        said = [tracked(node) + node.path("/var/log/shadowrelay.log").read_text() for node in nodes.values()]
        assert "correct horse" not in "".join(said)
