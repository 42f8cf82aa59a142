"""A broker answers as its OpenAPI document says, whatever is asked: schemathesis asks.

For each row of the table a few requests of each kind, the same in every run: those that fit the
document, and those that do not. No answer is a 500, and each has a status and a type of the
document. What is deleted is what requests name by chance.
"""

import json
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.http.api_pages import openapi
from penstock.http.endpoint import Endpoint
from penstock.http.endpoint_table import ENDPOINTS
from tests.helpers.asgi_client import basic
from tests.helpers.live_broker import LiveBroker

pytestmark = pytest.mark.real

EXAMPLES = 6
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
DOCUMENT = schemathesis.openapi.from_dict(json.loads(openapi(ENDPOINTS)))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("openapi") / "data", has_http=True) as broker:
        yield broker
        assert "Traceback" not in broker.log_text()


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: f"{row.method} {row.path}")
def test_each_row_answers_as_the_document_says(broker: LiveBroker, row: Endpoint) -> None:
    operation = DOCUMENT[f"/api/{row.path}"][row.method]
    base = f"http://{broker.host}:{broker.http_port}"
    headers = {"Authorization": basic("guest", "guest")}
    health = row.path.startswith("health")

    @settings(
        max_examples=EXAMPLES, derandomize=True, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy())
    def ask(case: schemathesis.Case) -> None:
        response = case.call(base_url=base, headers=headers)
        case.validate_response(response, checks=CHECKS if health else [*CHECKS, not_a_server_error])
        asked.append(case)

    asked: list[schemathesis.Case] = []
    ask()
    if row.tags:  # without a password
        asked[-1].validate_response(asked[-1].call(base_url=base), checks=CHECKS)
