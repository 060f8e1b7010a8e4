"""Requests drawn from the OpenAPI description: none ends in an error of the server."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from isthmus.serving.serve import open_app

EXAMPLES = settings.default.max_examples // 10  # of every address and mode
CHECKS = [
    not_a_server_error, response_schema_conformance, content_type_conformance,
    status_code_conformance,
]  # fmt: skip


@pytest.fixture(scope="module")
def schema(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The description of a server that does all that servers can, over files of its own."""
    place = tmp_path_factory.mktemp("drawn")
    index = shutil.copytree(folders / "both", place / "both")
    app = open_app(
        index,
        read_write=True,
        judgements=place / "judged",
        settings={"hosts": ["testserver"], "check_seconds": 0.0},
    )
    return schemathesis.openapi.from_asgi("/openapi.json", app)


def test_no_request_is_an_error_of_the_server_and_answers_are_as_described(schema: Any) -> None:
    """Also requests that the description does not allow: missing, too long, of other types."""
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {"/api/search", "/api/documents", "/metrics"} <= {one.path for one in operations}
    answered: set[int] = set()
    for operation in operations:
        for mode in GenerationMode:
            if mode.is_negative and not _has_input(operation):
                continue
            strategy = operation.as_strategy(generation_mode=mode)

            @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
            @given(case=strategy)
            def answers(case: Any) -> None:
                answered.add(case.call_and_validate(checks=CHECKS, timeout=300).status_code)

            answers()
    assert {200, 404, 422} <= answered
    assert max(answered) < 500


def test_every_parameter_has_a_description(schema: Any) -> None:
    for operation in (found.ok() for found in schema.get_all_operations()):
        for one in operation.definition.raw.get("parameters", ()):
            assert one["description"], (operation.path, one["name"])


def _has_input(operation: Any) -> bool:
    return bool(operation.body.items or operation.query.items)
