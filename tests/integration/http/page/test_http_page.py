"""The operator's page is one file that asks nobody but the port it came from.

The failure guarded: a page that a browser refuses to run, or that asks another host.
"""

import base64
import hashlib
import re

import httpx
import pytest

from services.gateway.routes.page import FILE, policy
from tests.integration.http.page.conftest import AdminPort
from tests.support.fakes.served_app import ServedApp

pytestmark = pytest.mark.anyio


async def test_the_admin_port_has_it_and_the_clients_port_has_not(
    admin: AdminPort, app: ServedApp
) -> None:
    async with httpx.AsyncClient() as client:
        for path in ("/ui", "/ui/"):
            page = await client.get(admin.url + path)
            assert page.status_code == 200
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            assert (await client.get(app.url + path)).status_code == 404
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["content-security-policy"] == policy(page.text)
        assert len(page.headers["x-request-id"]) == 32


def test_its_policy_lets_only_its_own_script_and_style_run() -> None:
    page = FILE.read_text(encoding="utf-8")
    rules = dict(rule.split(" ", 1) for rule in policy(page).split("; "))
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(f"{tag}-src") == f"'sha256-{digest}'"
    assert rules == {
        "default-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "object-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_it_names_no_host_and_makes_no_markup_of_data() -> None:
    page = FILE.read_text(encoding="utf-8")
    assert not re.search(r"(?i)https?://|@import|url\(|[\"'`]//", page)
    assert not re.search(r"(?i)innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", page)
    assert not re.search(r"(?i)<[^>]+\s(on\w+|style)\s*=", page), "the policy refuses these"
