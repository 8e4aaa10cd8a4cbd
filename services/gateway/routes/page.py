"""GET /ui: the operator's page, one file that asks nobody but the port it came from."""

import base64
import hashlib
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.http.request_id import request_id

FILE = Path(__file__).with_name("page.html")


def policy(page: str) -> str:
    """Its content security policy: of scripts and styles only the page's own run, by their
    digests, and nothing is loaded from elsewhere."""
    return (
        f"default-src 'self'; script-src {_digests(page, 'script')}; "
        f"style-src {_digests(page, 'style')}; img-src 'self' data:; connect-src 'self'; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class PageRoutes:
    """The page is read once, at the start."""

    def __init__(self) -> None:
        page = FILE.read_text(encoding="utf-8")
        self._page = page.encode()
        self._headers = {
            "content-security-policy": policy(page),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        }

    async def page(self, request: Request) -> Response:
        headers = {"x-request-id": request_id(request.scope), **self._headers}
        return Response(self._page, headers=headers, media_type="text/html")


def _digests(page: str, tag: str) -> str:
    found = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
