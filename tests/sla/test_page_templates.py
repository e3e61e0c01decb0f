"""What a template prints is escaped, visible and bounded; what is missing is an error; and nothing is marked as safe but our own files."""

from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError

from shadowrelay.sla.page import document
from shadowrelay.sla.page.document import render, templates
from shadowrelay.sla.page.message_lists import trace_id
from shadowrelay.sla.page.wording import TEXT_CHARACTERS_MAX
from tests.kit import summaries
from tests.kit.html_pages import Page

TEMPLATES = sorted(Path(document.__file__).parent.glob("templates/*.jinja"))
TEXTS = [
    ("<b>&\"'", "&lt;b&gt;&amp;&#34;&#39;"),
    ("{{ 7 * 7 }}{% raw %}{#", "{{ 7 * 7 }}{% raw %}{#"),
    ("a\u202eb\x00\n\ud800\u200b", "a\\u202eb\\u0000\\u000a\\ud800\\u200b"),
    ("ö\u00a0日本", "ö\u00a0日本"),
    ("x" * TEXT_CHARACTERS_MAX, "x" * TEXT_CHARACTERS_MAX),
    ("x" * 1_234, "x" * TEXT_CHARACTERS_MAX + "… (1,234 characters)"),
    (None, ""),
]


@pytest.mark.parametrize(("text", "printed"), TEXTS)
def test_text_is_escaped_made_visible_and_bounded(text: str | None, printed: str) -> None:
    template = templates().from_string('<p title="{{ text }}">{{ text }}</p>')

    assert f'<p title="{printed}">{printed}</p>' == template.render(text=text)


def test_what_a_macro_prints_is_escaped_once() -> None:
    template = templates().from_string("{% macro bold(text) %}<b>{{ text }}</b>{% endmacro %}<p>{{ bold(text) }}</p>")

    assert "<p><b>&lt;i&gt;&amp;amp;</b></p>" == template.render(text="<i>&amp;")


def test_a_name_without_a_value_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        templates().from_string("{{ absent }}").render()
    with pytest.raises(UndefinedError):
        templates().from_string("{{ summary.absent }}").render(summary={})


def test_only_the_style_and_the_script_are_not_escaped() -> None:
    marked = [line for path in TEMPLATES for line in path.read_text(encoding="utf-8").splitlines() if "safe" in line]

    assert ["<style>{{ style | safe }}</style>", "<script>{{ script | safe }}</script>"] == marked
    assert [] == [path.name for path in TEMPLATES if "autoescape" in path.read_text(encoding="utf-8")]


def test_each_template_is_compiled_once() -> None:
    assert templates().get_template("parts.html.jinja") is templates().get_template("parts.html.jinja")


HOSTILE_NAME = "<script>alert('1')</script>\"{{ 7 * 7 }}{% include 'x' %}"


def named(summary: dict[str, Any], old: str) -> dict[str, Any]:
    """The summary with one server called otherwise, wherever it is named."""

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {renamed(key): renamed(one) for key, one in value.items()}
        if isinstance(value, list):
            return [renamed(one) for one in value]
        return HOSTILE_NAME if value == old else value

    result: dict[str, Any] = renamed(summary)
    return result


def test_a_server_with_a_hostile_name_is_shown_by_that_name_everywhere() -> None:
    honest, old = render(summaries.demo()), "mx1.east.example"
    text = render(named(summaries.demo(), old))
    shown, hostile = Page(honest), Page(text)

    assert HOSTILE_NAME not in text
    assert "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&#34;{{ 7 * 7 }}{% include &#39;x&#39; %}" in text
    assert [element.name for element in shown.elements].count("script") == len(hostile.all("script"))
    for section in ("takeovers", "servers", "incidents", "traces", "input"):
        assert old in shown.by_id(section).text
        assert old not in hostile.by_id(section).text
        assert HOSTILE_NAME in hostile.by_id(section).text


def test_ids_of_traces_are_plain_and_never_two_alike() -> None:
    messages = ["0c9a-1", "a b", "a\u00a0b", "A", "a", "", "x" * 81, "_1", '"><script>', "\ud800"]
    ids = [trace_id(message) for message in messages]

    assert len(messages) == len(set(ids))
    assert "trace-0c9a-1" == ids[0]
    assert [] == [one for one in ids if not one.replace("_", "").replace("-", "").replace(".", "").isalnum()]
