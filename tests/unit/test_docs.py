"""The pages keep up with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_raytpu.model import errors

ROOT = Path(__file__).parents[2]


def _kinds(root: type[errors.RayTpuError]) -> list[type[errors.RayTpuError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _kinds(child))]


OURS = [kind for kind in _kinds(errors.RayTpuError) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_every_error_is_documented(kind: type[errors.RayTpuError]):
    page = (ROOT / "docs" / "errors.md").read_text()
    if kind is errors.RayTpuError:
        assert f"`{kind.code}`" in page
    else:
        row = rf"^\| {kind.code} \| `{kind.__name__}` \| [^|]{{20,}} \| [^|]{{20,}} \|$"
        assert re.search(row, page, re.MULTILINE)


def test_no_error_is_documented_that_does_not_exist():
    page = (ROOT / "docs" / "errors.md").read_text()
    assert set(re.findall(r"RT\d00|RT\d0\d", page)) <= {kind.code for kind in OURS}


def test_each_fault_names_a_test_that_exists():
    lines = (ROOT / "docs" / "faults.md").read_text().splitlines()
    rows = [line for line in lines if re.match(r"\| (?!what )", line)]
    assert len(rows) > 30
    for row in rows:
        named = re.fullmatch(r"\| [^|]{20,} \| [^|]{8,} \| `(tests/[\w/]+\.py)::(test_\w+)` \|", row)
        assert named, row
        path = ROOT / named[1]
        assert path.is_file(), row
        assert re.search(rf"^(async )?def {named[2]}\(", path.read_text(), re.MULTILINE), row


def test_links_between_pages_lead_somewhere():
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"
