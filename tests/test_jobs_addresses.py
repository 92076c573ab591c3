"""Where a launch is asked, by what it was told to listen on."""

import shlex
from pathlib import Path

import pytest

from shakedown.core import Launch
from shakedown.engines import parse
from shakedown.jobs.addresses import at_address
from shakedown.jobs.reading import target_of
from shakedown.jobs.request import LaunchRequest


def asked(command: str, **given: str):
    launch = Launch(argv=tuple(shlex.split(command)), env={}, cwd=Path("."))
    return target_of(parse(launch, None), LaunchRequest(launch=launch, **given), 8000)


@pytest.mark.parametrize(
    ("host", "there"),
    [
        ("", "127.0.0.1"),
        ("--host 0.0.0.0", "127.0.0.1"),
        ("--host ::", "[::1]"),  # which is often open to IPv6 alone
        ("--host ::1", "[::1]"),
        ("--host 10.0.0.7", "10.0.0.7"),
    ],
)
def test_any_address_is_reached_by_the_loopback_of_its_family(host: str, there: str):
    assert asked(f"vllm serve M {host}").base_url == f"http://{there}:8000"


def test_a_found_listener_is_asked_where_it_is_bound():
    assert at_address("http://127.0.0.1:8000/root", "::") == "http://[::1]:8000/root"
    assert at_address("https://127.0.0.1:8000", "10.0.0.7") == "https://10.0.0.7:8000"


def test_a_page_that_the_user_names_is_asked_as_it_was_typed():
    target = asked("vllm serve M", ready_url="http://127.0.0.1:9/ready?deep=1")
    assert (target.base_url, target.health_path) == ("http://127.0.0.1:9", "/ready?deep=1")
    assert target.health_is_named
    assert not asked("vllm serve M").health_is_named
