"""Generates `configs/example.toml` from the settings, so that text, defaults and ranges always agree. docs/design.md 7.

Lines that begin "# " explain; "#key = value" is a default: remove the # to change it.
"""

import inspect
import json
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from shadowrelay.model import receive_settings as receive
from shadowrelay.model import settings as model
from shadowrelay.model.back_pressure_settings import BackPressure
from shadowrelay.model.section import Section
from shadowrelay.model.settings import Settings

_WIDTH = 110

_HEADER = """\
A node of shadowrelay, with every setting there is. Made by `shadowrelay check --example`; a test keeps it equal to the program.

Lines that begin with "# " explain. Lines that begin with "#" and a key are defaults: remove the # to change one.
Durations: "250ms", "90s", "2m", "3h", "2d", fractions allowed. Sizes: "36MB" is 36,000,000 bytes, "64KiB" is 65,536.
Relative paths are relative to this file. Every value can be overridden by the environment:
SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT=2s, SHADOWRELAY_RECEIVE_CONNECTORS__0__LISTEN=127.0.0.1:2525, lists as JSON.
An unknown key is an error. Try a file with: shadowrelay check --config FILE"""

# keys without a default, and lists that are clearer with an entry
_EXAMPLES: dict[tuple[type[Section], str], str] = {
    (model.Server, "name"): '"mx1.east.example"',
    (model.Server, "site"): '"east"',
    (model.Server, "boundary"): '"example"',
    (receive.ReceiveConnector, "name"): '"inbound"',
    (receive.ReceiveConnector, "listen"): '"0.0.0.0:2525"',
    (receive.ReceiveConnector, "relay_from"): '["10.0.0.0/8"]',
    (receive.ReceiveConnector, "accepted_domains"): '["corp.example"]',
    (receive.Filter, "name"): '"rspamd"',
    (receive.Filter, "address"): '"http://127.0.0.1:11333"',
    (receive.RecipientSource, "name"): '"corp"',
    (receive.RecipientSource, "kind"): '"file"',
    (receive.RecipientSource, "file"): '"recipients.txt"',
    (model.Peer, "name"): '"mx1.west.example"',
    (model.Peer, "site"): '"west"',
    (model.Peer, "boundary"): '"example"',
    (model.Peer, "address"): '"mx1.west.example:2525"',
    (model.Route, "recipients"): '["*@corp.example"]',
    (model.Route, "next_hop"): '["mailstore1.corp.example:25", "mailstore2.corp.example:25"]',
    (model.Route, "inside_boundary"): "true",
    (model.Route, "site"): '"east"',
    (model.Route, "auth"): '{ user = "relay", secret_file = "secret" }',
    (model.Route, "tls_names"): '["relay.example"]',
    (model.Route, "tls_authority"): '"authority.pem"',
    (model.Route, "tls_certificate"): '"client.pem"',
    (model.Route, "tls_key"): '"client.key"',
    (model.SiteLink, "sites"): '["east", "west"]',
    (model.SiteLink, "cost"): "10",
    (model.Site, "name"): '"west"',
    (model.Site, "hub_site_enabled"): "true",
    (model.Tls, "certificate"): '"node.pem"',
    (model.Tls, "key"): '"node.key"',
    (model.Tls, "peer_authority"): '"peers.pem"',
    (model.Tls, "peer_revoked"): '"revoked.pem"',
    (model.Tls, "certificates"): '[{ certificate = "mail.pem", key = "mail.key" }]',
    (model.Peer, "require_tls"): "true",
    (model.Admin, "tls_listen"): '"0.0.0.0:8026"',
    (model.Admin, "read_only_token_file"): '"token-to-read"',
    (model.Admin, "report"): '"/var/lib/shadowrelay/report"',
    (model.AdminUser, "name"): '"noc"',
    (model.AdminUser, "role"): '"operator"',
    (model.AdminUser, "token_hash"): '"$argon2id$v=19$m=65536,t=3,p=4$c2FsdHNhbHRzYWx0c2FsdA$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g"',
    (model.Webhook, "url"): '"https://hooks.example/shadowrelay"',
    (model.Webhook, "secret"): '"a long secret of both sides"',
    (model.Dns, "nameservers"): '["127.0.0.1:5353"]',
}

_TABLES: tuple[tuple[str, type[Section]], ...] = (
    ("[server]", model.Server),
    ("[transport]", model.Transport),
    ("[[receive_connectors]]", receive.ReceiveConnector),
    ("[receive_connectors.limits]", receive.LimitsPerClient),
    ("[[filters]]", receive.Filter),
    ("[[recipient_sources]]", receive.RecipientSource),
    ("[[peers]]", model.Peer),
    ("[[routes]]", model.Route),
    ("[[site_links]]", model.SiteLink),
    ("[[sites]]", model.Site),
    ("[tls]", model.Tls),
    ("[send]", model.Send),
    ("[back_pressure]", BackPressure),
    ("[tracking]", model.Tracking),
    ("[shipping]", model.Shipping),
    ("[admin]", model.Admin),
    ("[[admin.users]]", model.AdminUser),
    ("[[webhooks]]", model.Webhook),
    ("[dns]", model.Dns),
)
_NESTED = frozenset({(model.Admin, "users")})  # lists of tables of their own
_OPTIONAL_TABLES = frozenset(
    {model.AdminUser, model.Webhook, receive.Filter, receive.RecipientSource, model.SiteLink, model.Site, model.Tls}
)
_SHOWN_ONLY = (
    "require_tls", "site", "nameservers", "tls_listen", "read_only_token_file", "peer_revoked", "report",
    "auth", "tls_names", "tls_authority", "tls_certificate", "tls_key",
)  # fmt: skip


def example() -> str:
    """The whole text of `configs/example.toml`."""
    assert {title.strip("[]") for title, _ in _TABLES if "." not in title} == set(Settings.model_fields)
    sections = {section for _, section in _TABLES}
    lines = list(_comment(_HEADER))
    for title, section in _TABLES:
        lines += ["", "", *_comment(inspect.getdoc(section) or ""), f"{'#' if section in _OPTIONAL_TABLES else ''}{title}"]
        for name, field in section.model_fields.items():
            if field.annotation in sections or (section, name) in _NESTED:
                continue  # it has a table of its own
            lines += ["", *_comment(_description(field)), _line(section, name, field)]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> Iterator[str]:
    for paragraph in text.split("\n"):
        yield from (f"# {line}" for line in textwrap.wrap(paragraph, _WIDTH)) if paragraph else ["#"]


def _description(field: FieldInfo) -> str:
    text, _, source = (field.description or "").partition(" Source: ")
    facts = [f"Default: {_default(field)}." if not field.is_required() else "Required."]
    bounds = [
        _toml(field, bound).strip('"')
        for attribute in ("ge", "le")
        for bound in (getattr(constraint, attribute, None) for constraint in field.metadata)
        if bound is not None
    ]
    if bounds:
        facts.append(f"Range: {' to '.join(bounds)}." if len(bounds) == 2 else f"At least {bounds[0]}.")
    if source:
        facts.append(f"Source: {source}.")
    return f"{text}\n{' '.join(facts)}"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    return "not set" if value is None else _toml(field, value).strip('"') or "empty"


def _line(section: type[Section], name: str, field: FieldInfo) -> str:
    shown = _EXAMPLES.get((section, name))
    is_active = field.is_required() or (shown is not None and name not in _SHOWN_ONLY)
    if shown is None:
        shown = _toml(field, field.get_default(call_default_factory=True, validated_data={}))
    return f"{'' if is_active and section not in _OPTIONAL_TABLES else '#'}{name} = {shown}"


def _toml(field: FieldInfo, value: Any) -> str:
    plain = TypeAdapter(field.rebuild_annotation()).dump_python(value, mode="json")
    if isinstance(plain, dict) and plain:
        return f"{{ {', '.join(f'{name} = {json.dumps(one)}' for name, one in plain.items())} }}"
    return json.dumps(plain)  # TOML writes all others like JSON
