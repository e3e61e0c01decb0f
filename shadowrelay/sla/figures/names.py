"""Who is who: Exchange names one server in several ways, and the directory of its log may be any of them. docs/sla.md, 2."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F


def logged_name(name: Column, logged_servers: Sequence[str]) -> Column:
    """The logged server that an Exchange log means by this name; the name as it is where it means none of them, or one of several."""
    key = F.lower(name)
    labels = _by(_first_label, logged_servers)
    short = {label: server for label, server in labels.items() if "." not in server}
    by_label = F.when(F.contains(key, F.lit(".")), _found(F.substring_index(key, ".", 1), short)).otherwise(_found(key, labels))
    meant = F.coalesce(_found(key, _by(str.lower, logged_servers)), by_label, name)
    is_plain = (name == "") | name.isin(*logged_servers)  # tried first, because a look into a map goes through all of it
    return F.when(is_plain, name).otherwise(meant)


def _first_label(server: str) -> str:
    return server.lower().partition(".")[0]


def _by(key: Callable[[str], str], servers: Sequence[str]) -> dict[str, str]:
    """Those that have a key which no other has."""
    counts = Counter(map(key, servers))
    return {key(server): server for server in servers if counts[key(server)] == 1}


def _found(key: Column, servers: Mapping[str, str]) -> Column:
    # as one literal: building a map of hundreds of columns takes seconds
    return F.try_element_at(F.from_json(F.lit(json.dumps(servers)), "map<string,string>"), key)
