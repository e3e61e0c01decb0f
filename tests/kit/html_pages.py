"""A page read back: its elements as a flat list, and whether it is whole."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "col"}


@dataclass
class Element:
    """Shapes: `parents` from the outside; `content` is texts and elements in their order."""

    name: str
    attributes: dict[str, str | None]
    parents: tuple["Element", ...]
    content: list["str | Element"] = field(default_factory=list)

    @property
    def children(self) -> list["Element"]:
        return [child for child in self.content if isinstance(child, Element)]

    @property
    def text(self) -> str:
        """That of all its descendants."""
        return "".join(child if isinstance(child, str) else child.text for child in self.content)

    def get(self, attribute: str) -> str:
        return self.attributes.get(attribute) or ""

    def inside(self, name: str) -> bool:
        return any(parent.name == name for parent in self.parents)

    def below(self, name: str) -> Iterator["Element"]:
        """Descendants of that name, in order."""
        for child in self.children:
            if child.name == name:
                yield child
            yield from child.below(name)


class Page(HTMLParser):
    """Raises: AssertionError if an element is closed that is not open, or not closed at all."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(text)
        self.close()
        assert [] == [element.name for element in self._open]
        self._by_id = {element.get("id"): element for element in self.elements if "id" in element.attributes}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs), tuple(self._open))
        assert len(attrs) == len(element.attributes), f"an attribute twice: {attrs}"
        self.elements.append(element)
        if self._open:
            self._open[-1].content.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        names = [element.name for element in self._open]
        assert [tag] == names[-1:], f"</{tag}> in {names}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1].content.append(data)

    def all(self, name: str) -> list[Element]:
        return [element for element in self.elements if element.name == name]

    def by_id(self, name: str) -> Element:
        return self._by_id[name]

    @property
    def ids(self) -> list[str]:
        return [element.get("id") for element in self.elements if "id" in element.attributes]
