"""The addresses of a server: what can be asked, and what the answers are."""

# Annotations are read when the app is made, with limits of their own: none is left as a text.
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.resources import files
from mimetypes import guess_type
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from isthmus._version import __version__
from isthmus.errors import choices, shown
from isthmus.evaluation.tables import look
from isthmus.inspection.explain import explained
from isthmus.records import Document
from isthmus.serving import messages
from isthmus.serving.errors import ERRORS, RefusalError, answer_errors
from isthmus.serving.guard import PAGES
from isthmus.serving.retrievers import Retrievers, ServedRetriever, model_name
from isthmus.serving.service import Service, fitting

_LONGEST = 200_000  # characters of a document, and of its metadata, that are sent
_FILTER = (
    'Test of the metadata of documents: {"year": {"$gte": 2020}, "lang": "en"}, with $eq, $ne, '
    "$gt, $gte, $lt, $lte, $in, $nin, $exists, $and, $or and $not; /api/about lists the fields."
)

Id = Annotated[messages.DocumentId, Query(description="Id of a document.")]
Use = Annotated[
    str | None, Query(description="Name of a retriever; /api/about lists them, and the default.")
]

Tests = Annotated[
    str | None,
    Query(description=f"{_FILTER} As JSON, or in short: year>=2020 lang=en tag!=draft."),
]


def application(service: Service) -> FastAPI:
    """The app over a service, which closes with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(service.watch())
        yield
        watching.cancel()
        service.close()

    app = FastAPI(
        title=f"isthmus: {service.current.source}",
        version=__version__,
        summary="Search, and see why.",
        lifespan=lifespan,
        docs_url=None,  # they fetch scripts from elsewhere: a page of ours is at /docs
        redoc_url=None,
        redirect_slashes=False,  # which would lead wherever the Host header says
        openapi_url=None,  # served below, as every other address
        dependencies=[Depends(_check_parameters)],
    )
    answer_errors(app)
    api = APIRouter(prefix="/api", responses=ERRORS)
    limits = service.settings.limits
    asked = Annotated[
        str,
        Query(min_length=1, max_length=limits.query_characters, description="Query, in words."),
    ]
    _add_searching(api, service, asked)
    _add_judging(api, service, asked)
    _add_changing(api, service)
    app.include_router(api)
    _add_files(app, service)
    return app


def _add_searching(api: APIRouter, service: Service, asked: Any) -> None:
    limits = service.settings.limits
    deep = Annotated[int, Query(ge=1, le=limits.k, description="Number of hits.")]
    much = Annotated[
        messages.Show,
        Query(
            description="How much of a hit is sent: ids (with scores), snippets (also titles and "
            "metadata), texts (also the text: of a long document its best passage)."
        ),
    ]

    class SearchBody(messages.Body):
        """What to search for, among which documents."""

        q: asked
        use: Use = None
        k: deep = 10
        filter: Annotated[dict[str, Any] | None, Query(description=_FILTER)] = None
        show: much = "texts"

    @api.get("/health", response_model=messages.Health)
    async def health() -> Any:
        """Whether the server answers."""
        return JSONResponse({"status": "ok", "version": __version__})

    @api.get("/about", response_model=messages.About)
    async def about() -> Any:
        """What is served: retrievers by name, the limits, and what else can be done."""
        now = service.current
        return {
            "title": now.source,
            "documents": len(now.index),
            "retrievers": [
                {"name": one.name, "type": one.type, "model": one.model}
                for one in now.by_name.values()
            ],
            "default": now.default,
            "metadata": now.index.metadata,
            "read_write": service.read_write,
            "judging": service.judgements is not None,
            "limits": limits.model_dump(),
        }

    async def found(q: str, use: str | None, k: int, tests: Any, show: messages.Show) -> Any:
        now = service.current
        served, chosen = _chosen(now, use), now.filter(tests)
        return JSONResponse(await service.search(served, q, k, show, chosen))

    @api.get("/search", response_model=messages.SearchAnswer)
    async def search(
        q: asked,
        use: Use = None,
        k: deep = 10,
        filter: Tests = None,  # noqa: A002 (the parameter's public name)
        show: much = "texts",
    ) -> Any:
        """The documents that a retriever, or the default one, finds best for a query."""
        return await found(q, use, k, filter, show)

    @api.post("/search", response_model=messages.SearchAnswer)
    async def search_by(body: SearchBody) -> Any:
        """The same, asked for by JSON: of a filter that is too long for an address, say."""
        return await found(body.q, body.use, body.k, body.filter, body.show)

    @api.get("/document", response_model=messages.DocumentAnswer)
    async def document(id: Id) -> Any:  # noqa: A002 (the parameter's public name)
        """One document; of a very long one the beginning."""
        found = await service.document(service.current, id)
        if found is None:
            raise _no_document(id)
        answer = {"id": found.id, "title": found.title, "text": found.text[:_LONGEST]}
        metadata = fitting(found.metadata, _LONGEST)
        return JSONResponse({**answer, "characters": len(found.text), "metadata": metadata})

    @api.get("/explain", response_model=dict[str, Any])
    async def explain(q: asked, id: Id, use: Use = None) -> Any:  # noqa: A002
        """Why a document has its score: terms, words, sentences, or parts of a fusion."""
        now = service.current
        served = _chosen(now, use)
        if await service.document(now, id) is None:
            raise _no_document(id)
        if not served.retriever.has_tokens(q):
            raise RefusalError(
                422, f"q: {shown(q)} has no words for {served.name!r} to read", "write it in words"
            )
        found = await service.explain(lambda: explained(served.retriever, q, id).to_dict())
        return JSONResponse(_placeless(found))


def _add_judging(api: APIRouter, service: Service, asked: Any) -> None:
    most = service.settings.limits.query_characters

    @api.get("/judgements", response_model=messages.JudgementsAnswer)
    async def judgements(q: asked) -> Any:
        """The judged documents of a query."""
        if service.judgements is None:
            raise _switched_off("judgements", "--judgements FOLDER")
        return JSONResponse({"grades": service.judgements.of(q)})

    @api.post("/judgements", response_model=messages.JudgementsAnswer)
    async def judge(body: messages.JudgementBody) -> Any:
        """Judges a document, or takes a judgement back; answered once it is on the disk."""
        if service.judgements is None:
            raise _switched_off("judgements", "--judgements FOLDER")
        if len(body.query) > most:
            raise RefusalError(
                422,
                f"query: {len(body.query):,} characters are more than the {most:,} of a request",
                "shorten it",
            )
        found = None
        if body.grade is not None:  # that of a document that is gone can be taken back
            found = await service.document(service.current, body.id)
            if found is None:
                raise _no_document(body.id)
        grades = await service.judge(body.query, body.id, body.grade, found)
        return JSONResponse({"grades": grades})


def _add_changing(api: APIRouter, service: Service) -> None:
    @api.post("/documents", response_model=messages.UpdateAnswer)
    async def add(body: messages.DocumentsBody) -> Any:
        """Adds documents, or replaces those of the same ids; answered once they are on the disk."""
        if not service.read_write:
            raise _switched_off("documents", "--read-write")
        new = [Document(one.id, one.text, one.title, metadata=one.fields) for one in body.documents]
        for one in new:
            if not one.contents().strip():
                raise RefusalError(
                    422,
                    f"document {one.id!r} has neither title nor text",
                    "leave it out, or give it a text; nothing was added",
                )
        return JSONResponse(asdict(await service.add(new)))

    @api.delete("/documents", response_model=messages.UpdateAnswer)
    async def delete(id: Id) -> Any:  # noqa: A002 (the parameter's public name)
        """Deletes a document; answered once that is on the disk."""
        if not service.read_write:
            raise _switched_off("documents", "--read-write")
        update = await service.delete([id])
        if not update.deleted:
            raise _no_document(id)
        return JSONResponse(asdict(update))


def _add_files(app: FastAPI, service: Service) -> None:
    pages = page_files()

    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> JSONResponse:
        return JSONResponse(app.openapi())

    @app.get("/metrics", response_class=Response, responses=ERRORS)
    async def metrics() -> Response:
        """Counters and histograms for Prometheus."""
        return Response(service.measurements.text(), media_type=CONTENT_TYPE_LATEST)

    def show(name: str) -> Callable[[], Any]:
        async def file() -> Response:
            content, kind = pages[name]
            return Response(content, media_type=kind)

        return file

    # An address per file: no name in a request is ever looked for on the disk.
    for name in pages:
        app.add_api_route(
            page_address(name), show(name), methods=["GET", "HEAD"], include_in_schema=False
        )


def page_files() -> dict[str, tuple[bytes, str]]:
    """Contents and types by name; look.css is the stylesheet that reports have too."""
    found = {"look.css": (look().encode(), "text/css")}
    for file in files("isthmus.serving").joinpath("page").iterdir():
        kind, _ = guess_type(file.name)
        if kind is not None and file.is_file():
            found[file.name] = file.read_bytes(), kind
    return found


def page_address(name: str) -> str:
    """The address of a file of the page."""
    return {"index.html": "/", "docs.html": "/docs"}.get(name, f"/page/{name}")


async def _check_parameters(request: Request) -> None:
    """Refuses parameters that an address does not have: their values would be ignored."""
    known = {one.alias for one in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        # A page's own are what it shows; it reads them itself.
        if name not in known and request.url.path not in PAGES:
            raise RefusalError(
                422,
                f"there is no parameter {name!r}",
                "leave it out, or correct its name",
                choices(name, known),
            )


def _placeless(found: dict[str, Any]) -> dict[str, Any]:
    """The explanation with the paths of model folders replaced by the models' names."""
    parts = found["fusion"]["parts"] if found["fusion"] else []
    for inner in (found["before"], *(part["explanation"] for part in parts)):
        if inner is not None:
            _placeless(inner)
    if place := found["model"]:
        found["model"] = name = model_name(place)
        found["notes"] = [note.replace(place, name) for note in found["notes"]]
    return found


def _chosen(now: Retrievers, name: str | None) -> ServedRetriever:
    name = now.default if name is None else name
    if name not in now.by_name:
        raise RefusalError(
            404,
            f"there is no retriever {name!r}",
            "choose one of these",
            choices(name, now.by_name),
        )
    return now.by_name[name]


def _no_document(document_id: str) -> RefusalError:
    return RefusalError(
        404,
        f"there is no document {document_id!r}",
        "search again: it may have been deleted",
    )


def _switched_off(what: str, option: str) -> RefusalError:
    return RefusalError(403, f"this server takes no {what}", f"start it with {option}")
