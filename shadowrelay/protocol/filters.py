"""Parses filters of listings, `MessageCount -gt 10 -and NextHopDomain -like '*.example'`, and matches them. docs/reference.md "Filters".

Property names and operators are Exchange's. A filter is parsed into a tree, which `matches` compares with values and `store.filter_sql`
compiles to SQL. Exchange joins comparisons with `-and` only; here `-or`, `-not` and parentheses join them too. PowerShell gives `-and`
and `-or` the same rank, most other languages do not, so a filter that mixes them without parentheses is refused. Source: msd-qps,
msd-qp, msd-mp

Names, operators and text are compared without regard to case. In the pattern of `-like`, `*` stands for any characters.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NoReturn

from shadowrelay.model.ownership import Role
from shadowrelay.model.values import dataclass

LENGTH_MAX = 2_000  # characters
COMPARISONS_MAX = 50
DEPTH_MAX = 20  # parentheses and -not within each other
DURATION_MAX = timedelta(days=100_000)  # in microseconds it must fit into a column

Value = str | float | datetime | timedelta | None


class Kind(StrEnum):
    """What the values of a property are."""

    TEXT = "a text"
    NUMBER = "a number"
    SIZE = "a size, such as 512KB or 10MB"
    INSTANT = "a date and time, such as 2026-11-22T10:00Z"
    DURATION = "a duration, such as 15m, 4h or 1.12:00:00"


class Operator(StrEnum):
    """Comparisons."""

    EQ = "-eq"
    NE = "-ne"
    GT = "-gt"
    GE = "-ge"
    LT = "-lt"
    LE = "-le"
    LIKE = "-like"
    NOT_LIKE = "-notlike"


OF_TEXT = (Operator.EQ, Operator.NE, Operator.LIKE, Operator.NOT_LIKE)
OF_ORDER = (Operator.EQ, Operator.NE, Operator.GT, Operator.GE, Operator.LT, Operator.LE)
NEGATIVE = (Operator.NE, Operator.NOT_LIKE)
JOINS = ("-and", "-or")
NOT = "-not"
NULL = "$null"


@dataclass(frozen=True, slots=True)
class Property:
    """Shapes: `values`: the only ones that there are; empty: any."""

    kind: Kind
    values: tuple[str, ...] = ()


TEXT, NUMBER = Property(Kind.TEXT), Property(Kind.NUMBER)
INSTANT, DURATION = Property(Kind.INSTANT), Property(Kind.DURATION)
ROLES = tuple(map(str, Role))
DELIVERY_TYPES = ("Undefined", "DnsConnectorDelivery", "SmartHostConnectorDelivery", "ShadowRedundancy")

QUEUE_PROPERTIES: Mapping[str, Property] = {
    "Identity": TEXT,
    "DeliveryType": Property(Kind.TEXT, DELIVERY_TYPES),
    "Status": Property(Kind.TEXT, ("Active", "Ready", "Retry", "Suspended")),
    "MessageCount": NUMBER,
    "NextHopDomain": TEXT,
    "LastError": TEXT,
    "NextRetryTime": INSTANT,
    "FirstRetryTime": INSTANT,
    "RetryCount": NUMBER,
    "Velocity": NUMBER,
    "OldestAge": DURATION,  # not one of Exchange's, as the next
    "Octets": Property(Kind.SIZE),
}
MESSAGE_PROPERTIES: Mapping[str, Property] = {
    "DateReceived": INSTANT,
    "ExpirationTime": INSTANT,
    "FromAddress": TEXT,
    "InternetMessageId": TEXT,
    "LastError": TEXT,
    "MessageLatency": DURATION,
    "MessageSourceName": TEXT,
    "NetworkMessageId": TEXT,
    "Queue": TEXT,
    "Recipients": TEXT,
    "RetryCount": NUMBER,
    "Role": Property(Kind.TEXT, ROLES),  # not one of Exchange's
    "Size": Property(Kind.SIZE),
    "SourceIP": TEXT,
    "Status": Property(Kind.TEXT, ("Ready", "Retry", "Suspended")),
    "Subject": TEXT,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Shapes: `value` None is `$null`: no value."""

    name: str
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class Joined:
    """`-and` of all parts, or `-or`."""

    is_and: bool
    parts: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """`-not`."""

    part: "Expression"


Expression = Comparison | Joined | Negated


class FilterError(ValueError):
    """A filter that cannot be understood. The text shows the filter with a caret below the mistake."""

    def __init__(self, filter_text: str, position: int, problem: str) -> None:
        shown = "".join(one if one.isprintable() else "?" for one in filter_text[:LENGTH_MAX])
        super().__init__(f"filter, character {position + 1}: {problem}\n{shown}\n{' ' * position}^")
        self.position = position
        self.problem = problem


_TOKEN = re.compile(r"""(?P<open>\()|(?P<close>\))|(?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<quote>['"])|(?P<word>[^\s()'"]+)""")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words


class _Parser:
    """Recursive descent; `_depth` bounds the recursion."""

    def __init__(self, text: str, properties: Mapping[str, Property]) -> None:
        self._text = text
        self._properties = {name.lower(): name for name in properties}
        self._kinds = properties
        self._tokens = self._tokenized()
        self._index = 0
        self._depth = 0
        self._comparisons_count = 0

    def parsed(self) -> Expression:
        if not self._text.strip():
            self._fail(0, f"it is empty; give a comparison, such as {next(iter(self._kinds))} -eq '…'")
        expression = self._joined()
        if (token := self._next()) is not None:
            self._fail(token.position, "-and, -or or the end is expected here")
        return expression

    def _tokenized(self) -> Sequence[_Token]:
        if len(self._text) > LENGTH_MAX:
            self._fail(LENGTH_MAX, f"it is longer than {LENGTH_MAX} characters")
        found = [_Token(str(match.lastgroup), match[0], match.start()) for match in _TOKEN.finditer(self._text)]
        for token in found:
            if token.kind == "quote":
                self._fail(token.position, "this quotation mark is not closed")
        return found

    def _fail(self, position: int, problem: str) -> NoReturn:
        raise FilterError(self._text, position, problem)

    def _next(self) -> _Token | None:
        return self._tokens[self._index] if self._index < len(self._tokens) else None

    def _taken(self, expected: str) -> _Token:
        token = self._next()
        if token is None:
            self._fail(len(self._text), f"{expected} is expected here")
        self._index += 1
        return token

    def _joined(self) -> Expression:
        parts = [self._part()]
        join = ""
        while (token := self._next()) is not None and token.is_word(*JOINS):
            if join and token.text.lower() != join:
                self._fail(token.position, "-and and -or without parentheses: which belongs together?")
            join = token.text.lower()
            self._index += 1
            parts.append(self._part())
        return parts[0] if len(parts) == 1 else Joined(join == "-and", tuple(parts))

    def _part(self) -> Expression:
        token = self._taken("a comparison")
        if token.kind != "open" and not token.is_word(NOT):
            return self._comparison(token)
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(token.position, f"more than {DEPTH_MAX} parentheses and -not within each other")
        if token.kind != "open":
            part: Expression = Negated(self._part())
        else:
            part = self._joined()
            closing = self._taken("a closing parenthesis")
            if closing.kind != "close":
                self._fail(closing.position, "-and, -or or a closing parenthesis is expected here")
        self._depth -= 1
        return part

    def _comparison(self, token: _Token) -> Expression:
        self._comparisons_count += 1
        if self._comparisons_count > COMPARISONS_MAX:
            self._fail(token.position, f"more than {COMPARISONS_MAX} comparisons")
        name = self._properties.get(token.text.lower()) if token.kind == "word" else None
        if name is None:
            self._fail(token.position, f"no property of that name; there are {', '.join(self._kinds)}")
        known = self._kinds[name]
        allowed = OF_TEXT if known.kind is Kind.TEXT else OF_ORDER
        given = self._taken("an operator")
        operator = next((operator for operator in Operator if given.is_word(operator.value)), None)
        if operator is None:
            self._fail(given.position, f"an operator is expected here: {', '.join(allowed)}")
        if operator not in allowed:
            self._fail(given.position, f"{name} is {known.kind}: {', '.join(allowed)} compare it")
        value = self._taken("a value")
        if value.kind in ("open", "close") or value.is_word(*JOINS, NOT, *Operator):
            self._fail(value.position, "a value is expected here")
        return Comparison(name, operator, self._value(known, operator, value))

    def _value(self, known: Property, operator: Operator, token: _Token) -> Value:
        if token.is_word(NULL):
            if operator not in (Operator.EQ, Operator.NE):
                self._fail(token.position, f"{NULL} can only be compared by -eq and -ne")
            return None
        text = token.text
        if token.kind == "quoted":
            quote = text[0]
            text = text[1:-1].replace(quote * 2, quote)
        if known.kind is Kind.TEXT:
            if known.values and operator in (Operator.EQ, Operator.NE) and text.lower() not in map(str.lower, known.values):
                self._fail(token.position, f"there is no such value; there are {', '.join(known.values)}")
            return text
        try:
            return _READERS[known.kind](text.strip())
        except (ValueError, OverflowError):
            self._fail(token.position, f"{known.kind} is expected here")


_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}  # decimal, as in the configuration
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_CLOCK = re.compile(r"(?:(\d{1,5})\.)?(\d{1,2}):(\d{2})(?::(\d{2}))?")
_PARTS = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(ms|[smhdw])")
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]?b)?", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,6})?")
_AMERICAN = ("%m/%d/%Y", "%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %I:%M %p", "%m/%d/%Y %I:%M:%S %p")  # as in Exchange's pages


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return float(text)


def _size(text: str) -> float:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * _UNITS[(match[2] or "B").upper()]


def _duration(text: str) -> timedelta:
    if (clock := _CLOCK.fullmatch(text)) is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    parts = _PARTS.findall(text.lower())
    if not parts or _PARTS.sub("", text.lower()).strip():
        raise ValueError(text)
    found = timedelta(seconds=sum(float(count) * _SECONDS[unit] for count, unit in parts))
    if found > DURATION_MAX:
        raise ValueError(text)
    return found


def _instant(text: str) -> datetime:
    """UTC unless it says otherwise."""
    for form in _AMERICAN:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


_READERS: Mapping[Kind, Callable[[str], float | datetime | timedelta]] = {
    Kind.NUMBER: _number,
    Kind.SIZE: _size,
    Kind.DURATION: _duration,
    Kind.INSTANT: _instant,
}


def parse_filter(text: str, properties: Mapping[str, Property]) -> Expression:
    """Raises: FilterError."""
    return _Parser(text, properties).parsed()


def matches(expression: Expression, values: Mapping[str, Value]) -> bool:
    """Whether these values of the properties satisfy it. A value that is missing satisfies `-ne`, `-notlike` and `-eq $null` only; an empty
    text is missing."""
    if isinstance(expression, Negated):
        return not matches(expression.part, values)
    if isinstance(expression, Joined):
        results = (matches(part, values) for part in expression.parts)
        return all(results) if expression.is_and else any(results)
    return _compared(values.get(expression.name), expression.operator, expression.value)


def _compared(value: Value, operator: Operator, wanted: Value) -> bool:
    if isinstance(wanted, str):
        text = value if isinstance(value, str) else ""
        is_pattern = operator in (Operator.LIKE, Operator.NOT_LIKE)
        is_like = _is_like(text.lower(), like_parts(wanted.lower())) if is_pattern else text.lower() == wanted.lower()
        return is_like is (operator not in NEGATIVE)
    if wanted is None or value is None or value == "":
        is_same = (value is None or value == "") and wanted is None
        return is_same is (operator not in NEGATIVE)
    order = (value > wanted) - (value < wanted)  # type: ignore[operator]  # both are what the property's kind says
    return {
        Operator.EQ: order == 0,
        Operator.NE: order != 0,
        Operator.GT: order > 0,
        Operator.GE: order >= 0,
        Operator.LT: order < 0,
        Operator.LE: order <= 0,
    }[operator]


def like_parts(pattern: str) -> list[str]:
    """What stands between the asterisks; several in a row are one."""
    return re.split(r"\*+", pattern)


def _is_like(text: str, parts: Sequence[str]) -> bool:
    """Each part as early as possible: no pattern makes this slow."""
    if len(parts) == 1:
        return text == parts[0]
    first, *middle, last = parts
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
