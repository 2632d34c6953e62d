"""The links of a release's description."""

from __future__ import annotations

import pytest


def test_a_link_with_a_title_leads_to_the_repository_too() -> None:
    pytest.importorskip("hatchling", reason="builds the wheel")
    from address import absolute

    text = '[a](b.md "A title") ![p](c.svg) [d](https://e "f") [g](#h "i")'
    assert absolute(text, "https://x/y") == (
        '[a](https://x/y/blob/main/b.md "A title") ![p](https://x/y/raw/main/c.svg) [d](https://e "f") [g](#h "i")'
    )
