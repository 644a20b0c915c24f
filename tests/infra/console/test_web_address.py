"""Addresses that people type: taken apart or refused in one sentence, and never shown with a password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.console.errors import HarmonyError
from infra.console.web import printable_url, split_url

EXPECTED = "address of a server: write http://host:port"


@pytest.mark.parametrize(
    ("url", "without"),
    [
        ("http://u:secretpw@h:9090/p", "http://h:9090/p"),
        ("https://secretpw@[::1]:1", "https://[::1]:1"),
        ("http://u:secret@pw@h", "http://h"),
        ("u:secretpw@h:9090", "h:9090"),
        ("http://h/a@b?c=d@e", "http://h/a@b?c=d@e"),
        ("h:9090", "h:9090"),
        ("http://h/m?token=secretpw", "http://h/m?token=..."),
        ("http://u:secretpw@h/m?part=gpu&X-Api-Key=secretpw&n=1#top", "http://h/m?part=gpu&X-Api-Key=...&n=1#top"),
        ("http://h/m?sig=secretpw#f", "http://h/m?sig=...#f"),
        ("http://h/token=1?collect[]=cpu", "http://h/token=1?collect[]=cpu"),
    ],
)
def test_a_password_is_left_out_and_all_else_stands(url: str, without: str) -> None:
    assert printable_url(url) == without


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1", "http://h:port", "http://h:99999", "http://h:0", "http://", "ftp://h", "h:9090", "http://h h",
        "http://h/\x00", "http://a]b", "http://\u2100", "",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_in_one_sentence(url: str) -> None:
    with pytest.raises(HarmonyError, match="is no address of a server: write") as refused:
        split_url(url, EXPECTED)
    assert refused.value.exit_code == 2


@given(st.text("[]:/@%?#ab1\\\u2100 \n", max_size=12), st.sampled_from(["http://", "https://", ""]))
def test_any_text_is_split_or_refused_and_neither_shows_the_password(rest: str, scheme: str) -> None:
    url = f"{scheme}u:secretpw@{rest}"
    assert "secretpw" not in printable_url(url)
    said = ""
    try:
        assert split_url(url, EXPECTED).hostname
    except HarmonyError as refused:
        said = refused.message
    assert "secretpw" not in said


def test_a_password_with_a_slash_is_not_shown_either() -> None:
    with pytest.raises(HarmonyError) as refused:
        split_url("http://u:secret/pw@h", EXPECTED)
    assert "secret" not in refused.value.message
