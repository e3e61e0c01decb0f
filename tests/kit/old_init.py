"""A cluster as `shadowrelay init` wrote it before it knew connectors for peers and several tokens: two nodes on loopback."""

import secrets
from collections.abc import Mapping
from pathlib import Path

from shadowrelay.model.routing import HostPort
from tests.kit.old_authority import write_old_certificates

TEXT = """\
# Written by `shadowrelay init`. Every setting, explained: shadowrelay check --example

[server]
name = "{name}"
site = "{site}"
boundary = "default"
data_directory = "data"

[transport]
# A message that no other node can hold a copy of is refused with 451, and the sender tries again. false: it is
# accepted with a single copy, which is lost with this node's disk.
reject_message_on_shadow_failure = true
# Silence of a node after which the others deliver its mail; the same on all nodes. Minutes suit nodes that are near each other.
#shadow_resubmit_time_span = "3h"

[[receive_connectors]]
name = "inbound"
listen = "{listen}"
accepted_domains = ["corp.example"]

[[peers]]
name = "{peer}"
site = "{peer_site}"
boundary = "default"
address = "{peer_listen}"
admin = "http://{peer_admin}"

[[routes]]
recipients = ["*@corp.example"]
next_hop = ["{next_hop}"]
inside_boundary = true

[tls]
certificate = "node.pem"
key = "node.key"
peer_authority = "peers.pem"

[tracking]
directory = "tracking"

[admin]
listen = "{admin}"
token_file = "token"
"""


def write_old_cluster(top: Path, nodes: Mapping[str, tuple[HostPort, HostPort]], next_hop: HostPort) -> None:
    """Shapes: two nodes, `mx1.<site>.example`, with the addresses of their connector and of their API."""
    token = secrets.token_urlsafe(32)  # one for all
    for (name, (listen, admin)), (peer, (peer_listen, peer_admin)) in zip(nodes.items(), reversed(nodes.items()), strict=True):
        place = top / name
        place.mkdir(parents=True, mode=0o700)
        sites = {"site": name.split(".")[1], "peer_site": peer.split(".")[1]}
        addresses = {"listen": listen, "admin": admin, "peer_listen": peer_listen, "peer_admin": peer_admin, "next_hop": next_hop}
        (place / "node.toml").write_text(TEXT.format(name=name, peer=peer, **sites, **addresses))
        (place / "token").touch(mode=0o600)
        (place / "token").write_text(token + "\n")
    write_old_certificates(top, nodes)
