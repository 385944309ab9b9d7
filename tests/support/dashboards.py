"""What the tests of the dashboard's pages share: texts of pages, and the checks that every page must pass."""

from __future__ import annotations

import re
from typing import Any

from django.test import Client

EVIL = "</textarea></script><script>alert(1)</script><img src=x onerror=alert(1)>"


def text_of(client: Client, address: str, status: int = 200) -> str:
    """The page at this address, as text."""
    response = client.get(address)
    assert response.status_code == status, (address, response.status_code, response.headers.get("Location"))
    return response.content.decode()


def assert_harmless(response: Any) -> None:
    """Nothing of a payload is markup, and the page holds no script, style or handler of its own under a strict law."""
    text = response.content.decode()
    policy = response.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    for tag in re.findall(r"<(?:script|style)\b[^>]*>", text):
        assert "src=" in tag, tag
    bare = re.sub(r'"[^"]*"', '""', text)
    assert not re.search(r"<[^>]*\s(?:on[a-z]+|style)\s*=", bare)
    assert "<img src=x" not in text
    assert "alert(1)</script>" not in text


def part(text: str, name: str) -> str:
    """One part of a page that is kept up to date."""
    return text.split(f'data-part="{name}"')[1].split("</section>", maxsplit=1)[0]
