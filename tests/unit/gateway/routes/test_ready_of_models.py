"""Whether clients should come to a gateway of several models.

The failure guarded: a gateway that keeps the requests of a model whose workers only others reach,
and one that nobody may ask because one of its models has no worker anywhere.
"""

from typing import cast

import httpx
import pytest

from services.gateway.prompt.served_model import ServedModel
from services.gateway.prompt.text_work.text_pool import TextPool
from services.gateway.routes.app import create_admin_app
from services.gateway.routes.served import Served, ServedModels
from services.gateway.routes.status import StatusRoutes
from tests.support.fakes.served_app import ScriptedDoor

pytestmark = pytest.mark.anyio
SERVES = {"is_ready": True}
NEVER = {"is_ready": False}
"""it has had no worker, and nobody has"""
NOBODY = {"is_ready": True, "is_served": False}
"""it had some, and nobody has now"""
OTHERS = {"is_ready": False, "is_served_elsewhere": True}


@pytest.mark.parametrize(
    ("first", "second", "status", "serves"),
    [
        (SERVES, SERVES, 200, True),
        (SERVES, NEVER, 200, True),
        (OTHERS, SERVES, 200, True),
        (NOBODY, NOBODY, 200, False),
        (NOBODY, NEVER, 200, False),
        (NEVER, NEVER, 503, None),
        (OTHERS, NOBODY, 503, None),
        (NOBODY, OTHERS, 503, None),
        (OTHERS, NEVER, 503, None),
    ],
)
async def test_ready_by_what_each_model_has(
    first: dict[str, bool], second: dict[str, bool], status: int, serves: bool | None
) -> None:
    models = ServedModels(
        [
            Served(
                ServedModel(name, 64, 64, ()),
                ScriptedDoor(lambda _: (), **state),  # type: ignore[arg-type]
                cast(TextPool, None),
            )
            for name, state in (("a", first), ("b", second))
        ]
    )
    app = create_admin_app(StatusRoutes(models, lambda: b"", "1"))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        answer = await client.get("/ready")
    assert (answer.status_code, answer.json().get("serves")) == (status, serves)
