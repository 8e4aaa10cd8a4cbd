"""The models behind one address, each as the HTTP layer sees it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starlette.requests import Request

from services.gateway.prompt.request_fields import no_such_model
from services.gateway.prompt.served_model import ServedModel
from services.gateway.prompt.text_work.text_pool import TextPool
from services.gateway.routes.owner_door import OwnerDoor


@dataclass(frozen=True)
class Served:
    """One model: what is known of it, what owns its requests, and what reads its text."""

    model: ServedModel
    door: OwnerDoor
    text: TextPool


class ServedModels:
    """By name; the first is the one that is meant where none is named."""

    def __init__(self, served: Sequence[Served]) -> None:
        self._by_name = {each.model.name: each for each in served}

    def __iter__(self) -> Iterator[Served]:
        return iter(self._by_name.values())

    @property
    def first(self) -> Served:
        return next(iter(self))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def named(self, name: str) -> Served:
        """RequestError 404 if there is none of that name."""
        if name not in self._by_name:
            raise no_such_model(self.names)
        return self._by_name[name]

    def of_query(self, request: Request) -> Served:
        """The one that an operator asks about: `?model=`, else the first. RequestError 404."""
        name = request.query_params.get("model")
        return self.first if name is None else self.named(name)

    async def of_body(self, body: bytes) -> Served:
        """The one that it names; of a body that names none the first, which says so where it must.
        RequestError 404 if there is none of that name; for the rest as TextPool.named_model."""
        name = await self.first.text.named_model(body) if len(self._by_name) > 1 else None
        return self.first if name is None else self.named(name)
