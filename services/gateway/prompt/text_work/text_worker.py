"""The process that reads large request bodies, so that the gateway's loop never waits for one.

The first message says what to load. Ends with its parent, or when the parent kills it over a body
that takes too long.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.gateway.prompt.prepared import PlainText, PreparedRequest, TokenList
from services.gateway.prompt.prompt_reader import PromptReader
from services.gateway.prompt.served_model import ServedModel
from services.gateway.prompt.shapes.parsers import Api
from shared.child.asker import Asker
from shared.codec import Codec
from shared.errors import RequestError
from shared.fields.json_body import load_object

Kind = Api | Literal["count", "tokenize", "detokenize", "name"]
"""what is read; name: the model alone, before it is known whose reader reads the rest"""


@dataclass(frozen=True)
class Setup:
    """First message: everything a PromptReader is made of."""

    directory: str
    model: ServedModel
    block_size: int


@dataclass(frozen=True)
class Job:
    """One request body to read."""

    kind: Kind
    body: bytes
    max_model_len: int
    """longest sequence that the workers hold"""
    hash_root: bytes
    """of the tenant's blocks"""


@dataclass(frozen=True)
class ModelName:
    """What the body's `model` is."""

    name: str | None
    """None: it has none, or one that is no text; whoever reads the rest says so"""


@dataclass(frozen=True)
class Refusal:
    """A RequestError on its way back."""

    message: str
    status: int
    code: str | None
    param: str | None
    kind: str

    def error(self) -> RequestError:
        return RequestError(
            self.message, status=self.status, code=self.code, param=self.param, kind=self.kind
        )


Answer = PreparedRequest | TokenList | PlainText
Reading = Answer | ModelName
TEXT_CODEC = Codec((Setup, Job, Refusal, ModelName, PreparedRequest, TokenList, PlainText))


def read_body(reader: PromptReader, job: Job) -> Reading:
    """The work itself, wherever it runs."""
    if job.kind == "name":
        name = load_object(job.body).get("model")
        return ModelName(name if isinstance(name, str) else None)
    if job.kind == "tokenize":
        return reader.tokenize(job.body)
    if job.kind == "detokenize":
        return reader.detokenize(job.body)
    if job.kind == "count":
        return reader.count(job.body)
    return reader.serving(job.max_model_len, job.hash_root).prepare(job.kind, job.body)


def serve(asker: Asker) -> None:
    """Answer jobs until the parent has no more."""
    setup = asker.next()
    if not isinstance(setup, Setup):
        return
    reader = PromptReader.load(Path(setup.directory), setup.model, setup.block_size)
    while isinstance(job := asker.next(), Job):
        try:
            asker.answer(read_body(reader, job))
        except RequestError as error:
            asker.answer(Refusal(error.message, error.status, error.code, error.param, error.kind))


if __name__ == "__main__":
    serve(Asker.parent(TEXT_CODEC))
