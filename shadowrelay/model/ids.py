"""Identifier types, one for each kind of id, so that mypy tells a server name from a database id. docs/design.md 2."""

from typing import NewType

ServerName = NewType("ServerName", str)
"""Fully qualified name of a node, lower case."""

SiteName = NewType("SiteName", str)

BoundaryName = NewType("BoundaryName", str)
"""Name of a transport high availability boundary."""

DatabaseId = NewType("DatabaseId", str)
"""UUID generated when a queue database file is created; canonical lower-case text with dashes."""

MessageId = NewType("MessageId", str)
"""Network message id: a UUID assigned by the first node; canonical lower-case text with dashes."""

NO_SERVER = ServerName("")
NO_SERVERS: frozenset[ServerName] = frozenset()
NO_MESSAGE = MessageId("")
NO_DATABASE = DatabaseId("")
