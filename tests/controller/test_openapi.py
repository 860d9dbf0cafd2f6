"""The OpenAPI document against what the controller really answers, by schemathesis: many requests, good and bad."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.controller.site import ADMIN, serving

# Left out: /events has no end, so who waits for the whole answer waits for ever (tests/controller/test_events.py reads
# it); and the check that what fits the schema is accepted: which drafts are loaded, what is pinned, the orders'
# revision and the largest batch are in no schema, so good requests about others are refused with 404, 412 and 422.
WITHOUT = ["--exclude-path-regex", "/events$", "--exclude-checks", "positive_data_acceptance"]


# Its coverage phase walks every bound of every field in turn, which takes longer than all else in `make test`.
FEW = ["--max-examples", "3", "--phases", "examples,fuzzing,stateful"]
MANY = ["--max-examples", "40"]


@pytest.mark.parametrize("effort", [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)])
def test_no_request_is_answered_otherwise_than_documented(tmp_path: Path, effort: list[str]) -> None:
    """Server errors, undocumented statuses and media types, bodies unlike their schema, bad requests that are accepted,
    and what needs a token answering without one: none, over reads and orders, alone and one after the other."""
    with serving(tmp_path, AKC_OPEN_READS="false") as site:
        document = httpx.get(f"{site.url}/openapi.json").json()
        found = subprocess.run(
            [
                sys.executable, "-m", "schemathesis.cli", "run", f"{site.url}/openapi.json", *effort,
                "--seed", "1", "--header", f"Authorization: Bearer {ADMIN}", "--request-timeout", "20", *WITHOUT,
            ],
            cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
    assert found.returncode == 0, found.stdout[-20_000:] + found.stderr[-2_000:]
    # A run that reached nothing would end with 0 too.
    operations = sum(len(path) for path in document["paths"].values())
    assert f"Tested: {operations - 1}\n" in found.stdout, found.stdout[-2_000:]
