"""Targets of shipping, and what of them may be shown."""

import pytest

from shadowrelay.model.setting_texts import checked_options, checked_target, shown_target, without_secrets


@pytest.mark.parametrize("target", ["", "/srv/logs", "s3://bucket/a", "file:///srv/logs", "memory://logs", "sftp://u:p@host:22/logs"])
def test_a_directory_or_a_url_is_a_target(target: str) -> None:
    assert target == checked_target(target)


@pytest.mark.parametrize("target", ["logs", "./logs", "s3:/bucket", "simplecache::s3://bucket", "C:\\logs", "://x"])
def test_anything_else_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match=r"is neither a URL|has \"::\""):
        checked_target(target)


def test_a_target_without_secrets_is_shown_as_it_is() -> None:
    targets = ("", "/srv/a:b@c", "s3://bucket/logs", "sftp://bob@host/logs")

    assert targets == tuple(map(shown_target, targets))


def test_secrets_are_taken_out_of_the_errors_of_libraries() -> None:
    options = {"secret": "hunter2", "key": "AKIAHUNTER", "region": "hun"}

    text = without_secrets("no access for AKIAHUNTER with hunter2 or s:e@cret in hun", "sftp://u:s:e@cret@host/x", options)

    assert "no access for [left out] with [left out] or [left out] in hun" == text


def test_options_are_text_numbers_and_truth_values() -> None:
    assert {"a": "b", "c": 1, "d": True} == checked_options({"a": "b", "c": 1, "d": True})
