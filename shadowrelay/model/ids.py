"""Identifiers, one type each, so that a checker can tell a server from a database."""

from typing import NewType

ServerName = NewType("ServerName", str)
"""Fully qualified name of a node, lower case."""

SiteName = NewType("SiteName", str)

BoundaryName = NewType("BoundaryName", str)
"""Name of a transport high availability boundary."""

DatabaseId = NewType("DatabaseId", str)
"""UUID minted when a queue database file is created; canonical lower-case text with dashes."""

MessageId = NewType("MessageId", str)
"""Network message id: a UUID given by the first node; canonical lower-case text with dashes."""

NO_SERVER = ServerName("")
NO_DATABASE = DatabaseId("")
