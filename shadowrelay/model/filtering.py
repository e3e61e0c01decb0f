"""What a filter says of a message before its copy is made. docs/reference.md "Filters before the copy"."""

from enum import StrEnum

from shadowrelay.model.replies import Reply
from shadowrelay.model.values import dataclass


class FilterAction(StrEnum):
    """`REFUSE` has a reply, 4xx or 5xx."""

    ACCEPT = "accept"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class HeaderChanges:
    """`removed`: names and which of them, from 1 at the top, from -1 at the bottom, 0: all. `added` stands above the header that came, in
    this order; names and values, with their line breaks. `subject` takes the place of the first Subject."""

    removed: tuple[tuple[str, int], ...] = ()
    added: tuple[tuple[str, str], ...] = ()
    subject: str | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.removed or self.added or self.subject is not None)


NO_CHANGES = HeaderChanges()


@dataclass(frozen=True, slots=True)
class FilterVerdict:
    """`label` is for the tracking log: few plain characters."""

    action: FilterAction
    label: str
    reply: Reply | None = None
    changes: HeaderChanges = NO_CHANGES
