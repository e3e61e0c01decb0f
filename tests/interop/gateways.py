"""What the tests of recipes share: nodes are put in place as `init` says, and a Postfix with a mailbox stands behind them."""

import re
import shutil

from tests.kit.servers import Server


def put_in_place(said: str, admin: Server, nodes: dict[str, Server]) -> None:
    """The commands that `init` ends with."""
    for line in said.partition("Next:\n")[2].splitlines():
        where, _, command = line.strip().partition(": ")
        if copied := re.fullmatch(r"scp -r (\S+)/\. root@(\S+):(\S+)/", line.strip()):
            node = next(node for node in nodes.values() if node.address == copied[2])
            shutil.copytree(admin.path(f"/root/{copied[1]}"), node.path(copied[3]), dirs_exist_ok=True)
        elif where.startswith("on each"):
            for node in nodes.values():
                node.types(command.partition(", then ")[2] if "install the program" in command else command.strip(), None)
    for node in nodes.values():
        node.types("until shadowrelay status --config /etc/shadowrelay/node.toml; do sleep 0.5; done")
        assert "0 warnings" in (checked := node.types("shadowrelay check --config /etc/shadowrelay/node.toml")), checked


def messages(server: Server, user: str) -> list[str]:
    return [path.read_text() for path in server.path(f"/var/mail/{user}/new").glob("*")]


def tracked(node: Server) -> str:
    """Its tracking log, which is written a moment after the fact."""
    return "".join(path.read_text() for path in node.path("/var/log/shadowrelay/tracking").rglob("*.LOG"))


def a_mail_store(server: Server, *more: str) -> None:
    """Postfix with a mailbox of bob."""
    server.types(
        "useradd --no-create-home --home-dir /var/mail/bob bob && install -d -o bob /var/mail/bob && touch /etc/aliases && newaliases"
    )
    settings = ["mydestination=corp.example", "home_mailbox=/", *more]
    server.types(f"postconf -e {' '.join(map(repr, settings))} && systemctl start postfix")


def waiting(node: Server) -> bool:
    """It has a message to deliver itself."""
    return (
        re.search(r"(?m)^([1-9]\d*) to deliver", node.types("shadowrelay queue list --config /etc/shadowrelay/node.toml", None)) is not None
    )
