"""A domain with an MTA-STS policy on a host of its own, and Postfix as its mail server: mail waits there while the certificate of that is
wrong, also on the server that takes over, and reaches it when it is right."""

import pytest
import trustme

from tests.interop.gateways import a_mail_store, messages, put_in_place, tracked
from tests.kit.clock import until
from tests.kit.servers import obstacle, servers

pytestmark = [pytest.mark.interop, pytest.mark.heavy, pytest.mark.timeout(1200)]

# addresses of the Internet: a policy host in a private network, or one for examples, would not be asked
SERVERS = {
    "gw1.corp.example": "151.101.0.11", "gw2.corp.example": "151.101.0.12", "admin.corp.example": "151.101.0.90",
    "mx.partner.example": "151.101.1.25", "mta-sts.partner.example": "151.101.1.80", "office.corp.example": "151.101.0.70",
}  # fmt: skip
DNS = """
import asyncio
from tests.kit.smtp_servers import DnsServer
zone = {
    ("partner.example", "MX"): ["10 mx.partner.example."], ("mx.partner.example", "A"): ["151.101.1.25"],
    ("_mta-sts.partner.example", "TXT"): ['"v=STSv1; id=one;"'], ("mta-sts.partner.example", "A"): ["151.101.1.80"],
}
async def main():
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: DnsServer(zone), ("127.0.0.1", 53))
    await asyncio.Event().wait()
asyncio.run(main())
"""
HTTPS = """
import functools, http.server, ssl
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory="/var/www")
server = http.server.ThreadingHTTPServer(("", 443), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/etc/ssl/private/host.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
POLICY = "version: STSv1\nmode: enforce\nmax_age: 86400\nmx: mx.partner.example\n"
CONFIG = "--config /etc/shadowrelay/node.toml"


@pytest.mark.skipif(bool(why := obstacle(["postfix", "swaks"])), reason=why)
async def test_a_policy_is_obeyed_also_by_the_server_that_takes_over() -> None:
    authority = trustme.CA()
    right, wrong = authority.issue_cert("mx.partner.example"), trustme.CA().issue_cert("mx.partner.example")
    policy = authority.issue_cert("mta-sts.partner.example")
    with servers(SERVERS) as found:
        nodes, store, host = {name: found[name] for name in ("gw1", "gw2")}, found["mx"], found["mta-sts"]
        python = next(iter(nodes.values())).path("/opt/shadowrelay/bin/shadowrelay").read_text().split('"')[1]
        host.types("mkdir -p /var/www/.well-known /etc/ssl/private")
        host.writes("/var/www/.well-known/mta-sts.txt", POLICY)
        host.writes("/etc/ssl/private/host.pem", policy.private_key_and_cert_chain_pem.bytes().decode())
        host.writes("/opt/policies.py", HTTPS)
        host.types(f"{python} /opt/policies.py > /var/log/https.out 2>&1 & until bash -c '</dev/tcp/127.0.0.1/443'; do sleep 0.2; done")
        store.writes("/etc/ssl/private/host.pem", wrong.private_key_and_cert_chain_pem.bytes().decode())
        a_mail_store(
            store, "mydestination=partner.example", "smtpd_tls_chain_files=/etc/ssl/private/host.pem", "smtpd_tls_security_level=may"
        )
        for node in nodes.values():
            with node.path("/etc/ssl/certs/ca-certificates.crt").open("ab") as file:
                file.write(authority.cert_pem.bytes())
            node.writes("/opt/zone.py", DNS)
            node.types(f"PYTHONPATH=/opt/checkout {python} /opt/zone.py > /var/log/dns.out 2>&1 &")

        told = found["admin"].types(
            "shadowrelay init cluster --node gw1.corp.example,east,151.101.0.11:25 --node gw2.corp.example,west,151.101.0.12:25 "
            "--relay-from 151.101.0.0/24\nfor file in cluster/*/node.toml; do printf '\\n[send]\\nmta_sts = true\\n' >> $file; done"
        )
        put_in_place(told, found["admin"], nodes)
        found["office"].types("swaks --server gw1.corp.example --from ann@corp.example --to bob@partner.example")
        await until(lambda: "4.7.5" in nodes["gw1"].types(f"shadowrelay queue list {CONFIG}"), 120)
        nodes["gw1"].types("systemctl kill --signal KILL shadowrelay && rm -r /var/lib/shadowrelay/data && systemctl start shadowrelay")
        await until(lambda: "4.7.5" in nodes["gw2"].types(f"shadowrelay queue list {CONFIG}"), 120)
        assert not messages(store, "bob")

        store.writes("/etc/ssl/private/host.pem", right.private_key_and_cert_chain_pem.bytes().decode())
        store.types("postfix reload")
        nodes["gw2"].types(f"shadowrelay queue retry --all {CONFIG}", None)
        await until(lambda: len(messages(store, "bob")) == 1, 120)
        await until(lambda: "S:Tls=TLSv1.3,verified,mta-sts=one" in tracked(nodes["gw2"]), 60)
        said = nodes["gw2"].types(f"shadowrelay messages find --to bob {CONFIG}")

        assert "bob@partner.example" in said
        assert host.path("/var/log/https.out").read_text().count("GET /.well-known/mta-sts.txt") >= 2  # each node for itself
