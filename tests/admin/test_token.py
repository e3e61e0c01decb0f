"""The bearer token's file."""

import stat

import pytest

from shadowrelay.admin.token import read_or_create_token, read_token
from shadowrelay.model.replies import ConfigurationError


def test_a_token_is_made_once_and_only_its_owner_may_read_it(tmp_path):
    path = tmp_path / "token"
    first = read_or_create_token(path)

    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert len(first) >= 43  # 256 bits
    assert first == read_or_create_token(path) == read_token(path)


def test_two_nodes_make_different_tokens(tmp_path):
    assert read_or_create_token(tmp_path / "a") != read_or_create_token(tmp_path / "b")


def test_a_token_that_an_operator_wrote_is_used_without_its_line_end(tmp_path):
    (tmp_path / "token").write_text("an-operator-s-own-token\n")

    assert "an-operator-s-own-token" == read_or_create_token(tmp_path / "token")


def test_a_token_in_a_directory_that_is_made_later_makes_it_for_its_owner_alone(tmp_path):
    assert read_or_create_token(tmp_path / "data" / "token")

    assert 0o700 == (tmp_path / "data").stat().st_mode & 0o777


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"short", b"two words in the token", b"x" * 1025, "ümläuteümläute".encode(), b"a-token-with\x00nul"]
)
def test_a_file_that_holds_no_usable_token_is_an_error_with_its_remedy(tmp_path, content):
    (tmp_path / "token").write_bytes(content)

    with pytest.raises(ConfigurationError, match="holds no usable token; write one line of 16 to 1024 visible"):
        read_or_create_token(tmp_path / "token")


def test_a_token_that_cannot_be_made_or_read_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file/token cannot be made .*; let this user write there"):
        read_or_create_token(tmp_path / "file" / "token")
    with pytest.raises(ConfigurationError, match=r"nothing cannot be read .*; the node makes it at its first start"):
        read_token(tmp_path / "nothing")
