"""The table of routes fits the services, the clients and the fake."""

import inspect

import pytest
from tests.fakes.client import FakeClient

from pgpu.client.http_client import HttpClient
from pgpu.client.remote_service import HttpAdministration, HttpFunctions
from pgpu.services.administration import AdministrationService
from pgpu.services.function_service import FunctionService
from pgpu.services.job_service import JobService
from pgpu.services.route_table import ADMIN_ROUTES, FUNCTION_ROUTES, GPU_ROUTES, JOB_ROUTES, ServiceRoute
from pgpu.structs import fields

JOBS = (*JOB_ROUTES, *GPU_ROUTES)
ROWS = [
    *((JobService, HttpClient, row) for row in JOBS),
    *((AdministrationService, HttpAdministration, row) for row in ADMIN_ROUTES),
    *((FunctionService, HttpFunctions, row) for row in FUNCTION_ROUTES),
]


@pytest.mark.parametrize(("service", "remote", "route"), ROWS, ids=[f"{row.method} {row.path}" for _, _, row in ROWS])
def test_a_row_has_the_parameters_of_its_operation(service: type, remote: type, route: ServiceRoute) -> None:
    name = route.operation or route.name
    parameters = list(inspect.signature(getattr(service, name)).parameters)[1:]
    in_path = len(route.path_parameters)
    rest = parameters[in_path + 1 :] if route.value is not None else parameters[in_path:]
    assert rest == list(route.arguments)
    assert hasattr(remote, name)


def test_a_body_s_fields_stand_in_the_order_of_the_operation_s_parameters() -> None:
    for _, _, route in ROWS:
        if route.body is not None:
            assert route.arguments[: len(fields(route.body))] == tuple(field.name for field in fields(route.body))


def test_the_fake_client_has_every_operation_that_the_command_line_calls() -> None:
    not_called = {"submit_batch", "rehearse_batch", "window"}
    names = {row.operation or row.name for row in JOBS} - not_called
    assert not names - vars(FakeClient).keys()
