"""The one door through which text becomes markup."""

import pytest

from shadowrelay.sla.page.markup import TEXT_CHARACTERS_MAX, Html, safe, tag, trace_id

TEXTS = [
    ("<b>&\"'", "&lt;b&gt;&amp;&quot;&#x27;"),
    ("a\u202eb\x00\n\ud800\u200b", "a\\u202eb\\u0000\\u000a\\ud800\\u200b"),
    ("ö\u00a0日本", "ö\u00a0日本"),
    ("x" * TEXT_CHARACTERS_MAX, "x" * TEXT_CHARACTERS_MAX),
    ("x" * 1_234, "x" * TEXT_CHARACTERS_MAX + "… (1,234 characters)"),
]


@pytest.mark.parametrize(("text", "markup"), TEXTS)
def test_text_is_escaped_made_visible_and_bounded(text: str, markup: str) -> None:
    assert markup == safe(text)


def test_markup_stays_and_children_are_joined() -> None:
    assert "<p>&lt;i&gt;<b>1</b></p>" == tag("p", "<i>", None, [tag("b", "1"), []])


def test_attributes_are_escaped_whole_and_named_as_in_html() -> None:
    assert (
        '<a class="x" data-key="&quot;&gt;&lt;\\u000a" hidden>'
        == tag("a", class_="x", data_key='"><\n', hidden=True, id=None, lang=False)[:-4]
    )
    assert "y" * 9_999 in tag("path", d="y" * 9_999)  # a path that is cut is no path


@pytest.mark.parametrize(("name", "attribute"), [("p onclick", "id"), ("p", "on click"), ("", "id"), ("p", "x=")])
def test_what_is_no_name_is_refused(name: str, attribute: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        tag(name, **{attribute: "1"})


def test_ids_of_traces_are_plain_and_never_two_alike() -> None:
    messages = ["0c9a-1", "a b", "a\u00a0b", "A", "a", "", "x" * 81, "_1", '"><script>', "\ud800"]
    ids = [trace_id(message) for message in messages]

    assert len(messages) == len(set(ids))
    assert "trace-0c9a-1" == ids[0]
    assert [] == [one for one in ids if not one.replace("_", "").replace("-", "").replace(".", "").isalnum()]
    assert isinstance(tag("p"), Html)
