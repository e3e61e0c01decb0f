"""Changes the header of a message as a filter asks for. docs/reference.md "Filters before the copy". Fields that stay are not touched."""

import re

from shadowrelay.model.filtering import HeaderChanges

_FIELD = re.compile(rb"[!-9;-~]+[ \t]*:[^\n]*(?:\n[ \t][^\n]*)*\n?")


def header_end(beginning: bytes) -> int:
    """Where the header ends, before the empty line; -1 if that is not in these octets."""
    return 0 if beginning.startswith(b"\r\n") else (found + 2 if (found := beginning.find(b"\r\n\r\n")) >= 0 else -1)


def edited(header: bytes, changes: HeaderChanges) -> bytes:
    """The whole header, without the empty line behind it, after these changes. What is no field stays where it is."""
    fields = _fields_of(header)
    for name, which in changes.removed:
        places = [place for place, field in enumerate(fields) if _is(field, name)]
        if which == 0:
            chosen = places
        elif 0 < which <= len(places):
            chosen = [places[which - 1]]
        else:
            chosen = [places[which]] if -len(places) <= which < 0 else []
        fields = [field for place, field in enumerate(fields) if place not in chosen]
    if changes.subject is not None:
        subject = f"Subject: {changes.subject}\r\n".encode("ascii")
        place = next((place for place, field in enumerate(fields) if _is(field, "Subject")), None)
        if place is None:
            fields.append(subject)
        else:
            fields[place] = subject
    added = [f"{name}: {value}\r\n".encode("ascii") for name, value in changes.added]
    return b"".join((*added, *fields))


def _fields_of(header: bytes) -> list[bytes]:
    """Each with its folded lines; a line that is no field is one of its own."""
    found, at = [], 0
    while at < len(header):
        field = _FIELD.match(header, at)
        end = field.end() if field is not None else header.find(b"\n", at) + 1 or len(header)
        found.append(header[at:end])
        at = end
    return found


def _is(field: bytes, name: str) -> bool:
    head, colon, _ = field.partition(b":")
    return bool(colon) and head.strip().lower() == name.lower().encode("ascii")
