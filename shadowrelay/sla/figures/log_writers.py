"""Whose logs these are, by what the rows of Exchange's logs say themselves, and not by the names of directories alone. docs/sla.md, 1.

`words` counts the names that rows have for the server that wrote them, and for others of its kind, in one pass over the events. From these
few lines follow which directories, and which files of one directory, are of one server (`identities`), to which domains the servers belong,
and which of them have no log of what they delivered to mailboxes (`Told`).
"""

import json
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.figures.exchange import ACKNOWLEDGES, OWN, WITHOUT_NETWORK_ID, does

Place = TypeVar("Place")
WRITER, PEER, ITSELF, DELIVERS, SENDS, HANDS, GETS, COPIES = "writer", "peer", "itself", "delivers", "sends", "hands", "gets", "copies"
_BY_SERVER_HOSTNAME = ("HARECEIVE", "HADISCARD", "HAREDIRECTFAIL")
_BY_CLIENT_HOSTNAME = ("SEND", "SENDEXTERNAL")
_OF_MAILBOXES = ("DELIVER", "DUPLICATEDELIVER", "DELIVERFAIL", "PROCESS", "PROCESSMEETINGMESSAGE")
CUT_AT = 15  # characters: so long is a computer's NetBIOS name
_FIRST_HOP = "(?:^|;)S:FirstForestHop=([^;]*)"
_REPLICATION = "(?:^|;)S:Replication=([^;]*)"


class Word(NamedTuple):
    """How often the rows of a directory, or of one file of it, say this. `kind`: `WRITER`: the server that wrote them has this name;
    `PEER`: another one of its kind has, or itself; `ITSELF`: it handed mail to its own mailboxes; `DELIVERS`: that arrived there; `HANDS`:
    it handed mail to this one, whose log may tell of it under the same id; `SENDS`: it sent mail to this one, otherwise; `GETS`: it
    received mail from this one; `COPIES`: this one has its copies."""

    server: str
    file: str
    kind: str
    name: str
    times: int


class Told(NamedTuple):
    """`domains` of the servers, in lower case; `without_deliveries`: servers that hand mail to their mailboxes, and have no log of that;
    `whole`: names that Windows cut, in lower case, with the name that each stands for."""

    domains: frozenset[str] = frozenset()
    without_deliveries: frozenset[str] = frozenset()
    whole: Mapping[str, str] = MappingProxyType({})


NOTHING_TOLD = Told()


class Identities(NamedTuple):
    """What is to be called otherwise than its directory: directories by name, and files by (directory, name)."""

    directories: dict[str, str]
    files: dict[tuple[str, str], str]

    def of(self, directory: str, file: str) -> str:
        """Whose log this is."""
        return self.files.get((directory, file)) or self.directories.get(directory, directory)


# ---- the rows


def words(events: DataFrame, of: Collection[str] | None = None) -> list[Word]:
    """Shapes: `events` as stored. `of`: only these directories, file by file; else each directory as a whole, with `file` empty."""
    is_writing = does(ACKNOWLEDGES) | F.col("event").isin(*_BY_SERVER_HOSTNAME)
    is_sending = F.col("event").isin(*_BY_CLIENT_HOSTNAME)
    is_to_itself = is_sending & (_label("client_hostname") == _label("server_hostname"))
    is_handing = (F.col("event") == "SEND") & ~is_to_itself & (F.col("format") != WITHOUT_NETWORK_ID)
    is_promotion = (F.col("event") == "RESUBMIT") & (F.col("source") == "REDUNDANCY")
    each = F.array(
        _said(is_writing, WRITER, F.col("server_hostname")),
        _said(is_sending, WRITER, F.col("client_hostname")),
        _said(F.col("event").isin("HARECEIVE", "HADISCARD"), PEER, F.col("client_hostname")),
        _said(is_promotion, PEER, F.col("reference")),
        _said(does(ACKNOWLEDGES), PEER, F.regexp_extract("custom_data", _FIRST_HOP, 1)),
        _said(is_to_itself, ITSELF, F.lit("-")),
        _said(F.col("event").isin(*_OF_MAILBOXES), DELIVERS, F.lit("-")),
        _said(is_sending & ~is_to_itself & ~is_handing, SENDS, F.col("server_hostname")),
        _said(is_handing, HANDS, F.col("server_hostname")),
        _said(does(ACKNOWLEDGES), GETS, F.col("client_hostname")),
        _said(does(ACKNOWLEDGES), COPIES, F.regexp_extract("custom_data", _REPLICATION, 1)),
        _said(F.col("event") == "HAREDIRECT", COPIES, F.regexp_extract("source_context", r"^\s*([^\s=]+)\s*=", 1)),
    )
    rows = events.where(F.col("format") != OWN)
    if of is not None:
        rows = rows.where(F.col("server").isin(*of))
    file = F.lit("") if of is None else F.col("file")
    said = rows.select("server", file.alias("file"), F.explode(F.array_compact(each)).alias("said")).select("server", "file", "said.*")
    counted = said.where("name <> ''").groupBy("server", "file", "kind", "name").agg(F.count(F.lit(1)).alias("times"))
    return [Word(*row) for row in counted.select(*Word._fields).collect()]


def _said(condition: Column, kind: str, name: Column) -> Column:
    return F.when(condition, F.struct(F.lit(kind).alias("kind"), name.alias("name")))


def _label(name: str) -> Column:
    return F.lower(F.substring_index(name, ".", 1))


# ---- what follows


def cut_names(said: Iterable[Word], directories: Collection[str]) -> dict[str, list[str]]:
    """Names that Windows cut, in lower case, with the servers that each may stand for: by its full name, if only one domain has one.

    Shapes: `said` as from `words`; `directories` of logs of Exchange.
    """
    said = [*said]
    names = {word.name for word in said if word.kind in (WRITER, PEER)} | {*directories}
    domains = _domains(names)
    names |= {word.name for word in said if word.kind in (HANDS, GETS, COPIES) and (not domains or _domain(word.name) in domains)}
    cut = {name.lower() for name in names if len(name) == CUT_AT and "." not in name}
    found: dict[str, dict[str, set[str]]] = {}
    for name in names:
        whole = label(name)
        if whole[:CUT_AT] in cut and (len(whole) > CUT_AT or "." in name):
            found.setdefault(whole[:CUT_AT], {}).setdefault(whole, set()).add(name)
    longer = {name: wholes for name, wholes in found.items() if wholes.keys() - {name}}
    return {name: sorted(_one_name(whole, names) for whole, names in wholes.items()) for name, wholes in longer.items()}


def _one_name(whole: str, names: Collection[str]) -> str:
    full = {name.lower(): name for name in sorted(names) if "." in name}
    return next(iter(full.values())) if len(full) == 1 else whole


def in_full(said: Iterable[Word], cut: Mapping[str, list[str]]) -> list[Word]:
    """The words with whole names: of what a log says of its own server also where only the rest of that log tells who it is.

    Shapes: `said` as from `words`, `cut` as from `cut_names`.
    """
    said = [*said]
    own: dict[str, set[str]] = {}
    for word in said:
        own.setdefault(word.server, {label(word.server)})
        if word.kind == WRITER:
            own[word.server].add(label(word.name))

    def whole(word: Word) -> str:
        servers = cut.get(word.name.lower(), [])
        if len(servers) > 1 and word.kind == WRITER:
            servers = [server for server in servers if label(server) in own[word.server]]
        return servers[0] if len(servers) == 1 else word.name

    return [word._replace(name=whole(word)) for word in said]


def several(said: Iterable[Word], called: Mapping[str, str]) -> list[str]:
    """Directories with rows that other servers wrote: they are to be told file by file."""
    return sorted({word.server for word in said if word.kind == WRITER and label(word.name) != label(called.get(word.server, word.server))})


def identities(
    directories: Mapping[str, str | None],
    said: Iterable[Word],
    of_files: Iterable[Word] = (),
    whole: Mapping[str, str] = NOTHING_TOLD.whole,
) -> Identities:
    """The directories and files of Exchange that are to be called otherwise: several directories with one server's log, one that is named
    after no server of its rows, and one with the logs of several.

    Shapes: `directories` with the format of each; `said` as from `words`, `of_files` likewise, file by file, both with whole names; `whole`
    as of `Told`.
    """
    called = {directory: whole.get(directory.lower(), directory) for directory, each in directories.items() if (each or OWN) != OWN}
    for directory, names in _votes((word.server, word.name, word.times) for word in said if word.kind == WRITER).items():
        called[directory] = called.get(directory, directory)
        if label(called[directory]) not in {label(name) for name in names}:
            called[directory] = _most(names)
    files: dict[tuple[str, str], str] = {}
    votes = _votes(((word.server, word.file), word.name, word.times) for word in of_files if word.kind == WRITER)
    for (directory, file), names in votes.items():
        if label(called.get(directory, directory)) not in {label(name) for name in names}:
            files[directory, file] = _most(names)
    by_label: dict[str, set[str]] = {}
    for name in (*called.values(), *files.values()):
        by_label.setdefault(label(name), set()).add(name)

    def one(name: str) -> str:
        alike = by_label[label(name)]
        full = {each.lower() for each in alike if "." in each}
        return max(alike, key=lambda each: ("." in each, each)) if len(full) <= 1 else name

    renamed = {directory: one(name) for directory, name in called.items() if one(name) != directory}
    return Identities(renamed, {place: one(name) for place, name in files.items()})


def _votes(said: Iterable[tuple[Place, str, int]]) -> dict[Place, dict[str, int]]:
    votes: dict[Place, dict[str, int]] = {}
    for place, name, count in said:
        found = votes.setdefault(place, {})
        found[name] = found.get(name, 0) + count
    return votes


def _most(names: Mapping[str, int]) -> str:
    """The server that most of the rows name, by its full name if they have one."""
    best = max({label(name) for name in names}, key=lambda one: (sum(n for name, n in names.items() if label(name) == one), one))
    return max((name for name in names if label(name) == best), key=lambda name: ("." in name, names[name], name))


def told(said: Iterable[Word], called: Identities, logs: Mapping[str, str | None], whole: Mapping[str, str] = NOTHING_TOLD.whole) -> Told:
    """Shapes: `said` as from `words`, file by file where one directory has the logs of several; `logs`: all servers that have one, with its
    format."""
    said = [*said]
    later = {server for server, each in logs.items() if each not in (None, "", OWN, WITHOUT_NETWORK_ID)}
    of_exchange = later | {server for server, each in logs.items() if each == WITHOUT_NETWORK_ID}
    names = {word.name for word in said if word.kind in (WRITER, PEER)} | of_exchange
    domains = _domains(names)
    found: dict[str, set[str]] = {ITSELF: set(), DELIVERS: set()}
    pairs: dict[str, set[tuple[str, str]]] = {SENDS: set(), HANDS: set(), GETS: set()}
    for word in said:
        server = called.of(word.server, word.file)
        if word.kind in found:
            found[word.kind].add(server)
        elif word.kind in pairs:
            pairs[word.kind].add((server, meant(word.name, logs, domains)))
    found[ITSELF] |= {server for server, other in pairs[SENDS] | pairs[HANDS] if other == server}  # by another of its names
    receiving = {server for server, other in pairs[GETS] if other in of_exchange and other != server}
    handed = {other for server, other in pairs[HANDS] if other in later and other != server}
    return Told(frozenset(domains), frozenset((found[ITSELF] | (handed - receiving)) - found[DELIVERS]), whole)


def _domains(names: Iterable[str]) -> set[str]:
    return {_domain(name) for name in names if label(name) != name.lower()} - {""}


def _domain(name: str) -> str:
    return name.lower().partition(".")[2]


def meant(name: str, logged: Collection[str], domains: Collection[str]) -> str:
    """The same as `rows.logged_name`."""
    if name in logged:
        return name
    key, first = name.lower(), name.lower().partition(".")[0]
    alike = [server for server in logged if server.lower() == key]
    if len(alike) == 1:
        return alike[0]
    namesakes = [server for server in logged if server.lower().partition(".")[0] == first]
    is_strange = "." in name and bool(domains) and key.partition(".")[2] not in domains
    return namesakes[0] if len(namesakes) == 1 and not is_strange and not ("." in name and "." in namesakes[0]) else name


def with_identities(frame: DataFrame, called: Identities) -> DataFrame:
    """Each row as of its server. Shapes: `frame` has `server`, the directory, and `file`."""
    if called.files:
        of_files = _literal({f"{directory}/{file}": name for (directory, file), name in called.files.items()})
        named = F.try_element_at(of_files, F.concat("server", F.lit("/"), "file"))
    else:
        named = F.lit(None).cast("string")
    if not called.directories and not called.files:
        return frame
    return frame.withColumn("server", F.coalesce(named, F.try_element_at(_literal(called.directories), F.col("server")), "server"))


def in_whole(name: Column, whole: Mapping[str, str]) -> Column:
    """The name that a cut one stands for. Shapes: `whole` as of `Told`."""
    return F.coalesce(F.try_element_at(_literal(whole), F.lower(name)), name) if whole else name


def _literal(names: Mapping[str, str]) -> Column:
    return F.from_json(F.lit(json.dumps(dict(names))), "map<string,string>")


def label(name: str) -> str:
    """`ex1` of `EX1.corp.example`. An address is a label of its own."""
    lowered = name.lower()
    return lowered if lowered.replace(".", "").isdecimal() or ":" in lowered else lowered.partition(".")[0]
