"""Which certificate a receive connector shows: the one for the name that the client asks for. RFC 6066 3; docs/setup.md "Certificates"

A client that asks for no name, or for one that no further certificate has, is shown the node's own, as ever.
"""

import ssl
from collections.abc import Sequence

from cryptography import x509

from shadowrelay import credentials

Named = tuple[frozenset[str], ssl.SSLContext]
"""The DNS names of a certificate, which may begin with a star, and the context that shows it."""


def dns_names(certificate: x509.Certificate) -> frozenset[str]:
    """Lower case."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    return frozenset(name.lower() for name in found.get_values_for_type(x509.DNSName))


def show_by_name(context: ssl.SSLContext, others: Sequence[Named]) -> None:
    """Let this context show what the client asks for: a certificate with that very name comes before one with a star."""
    if not others:
        return
    exact = {name: other for names, other in reversed(others) for name in names if "*" not in name}

    def choose(session: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if name is None:
            return
        found = exact.get(name.lower())
        if found is None:
            found = next((other for names, other in others if any(credentials.covers(one, name) for one in names)), None)
        if found is not None:
            session.context = found

    context.sni_callback = choose
