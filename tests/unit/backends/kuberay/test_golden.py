"""What comes out for whom, in full, as files that people read. ``RAYTPU_WRITE_GOLDEN=1`` writes them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from tests.unit.backends.kuberay import admission
from tests.unit.backends.kuberay.scenarios import SCENARIOS, made

GOLDEN = Path(__file__).parent / "golden"
PAGE = Path(__file__).parents[4] / "docs" / "manifests.md"
_BLOCK = re.compile(r'^```yaml title="(\w+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class _Readable(yaml.SafeDumper):
    """Text of several lines as a block."""


_Readable.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _shown(name):
    """The manifest, with a word for the keeper's program, which has tests of its own."""
    _, asked, options = SCENARIOS[name]
    found = made(asked, **options)
    for template in admission.templates(found):
        for container in template["spec"]["containers"]:
            if container["name"] == "keeper":
                container["command"][2] = "the text of backends/kuberay/keeper.py"
    return found


def _text(name):
    title = SCENARIOS[name][0]
    return f"# {title}\n{yaml.dump(_shown(name), Dumper=_Readable, sort_keys=False, width=200)}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_manifest_is_the_golden_one(name):
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("RAYTPU_WRITE_GOLDEN"):
        path.write_text(_text(name))
    assert path.read_text() == _text(name)


@pytest.mark.parametrize("name", SCENARIOS)
def test_yaml_gives_back_the_same_object(name):
    _, asked, options = SCENARIOS[name]
    once = made(asked, **options)
    assert yaml.safe_load(_text(name)) == _shown(name)
    text = yaml.safe_dump(once, sort_keys=False)
    assert yaml.safe_load(text) == once
    assert yaml.safe_dump(yaml.safe_load(text), sort_keys=False) == text
    assert "&id" not in text, "an anchor: two parts of the object share a list"


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(SCENARIOS)


def _is_part(part, whole):
    """Whether *part* says nothing that *whole* does not; elements of a list may stand anywhere."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and _is_part(each, whole[key]) for key, each in part.items()
        )
    if isinstance(part, list):
        return isinstance(whole, list) and all(any(_is_part(each, other) for other in whole) for each in part)
    return part == whole


def test_the_page_shows_every_scenario_as_it_is():
    blocks = _BLOCK.findall(PAGE.read_text())
    assert {name for name, _ in blocks} == set(SCENARIOS)
    for name, text in blocks:
        assert _is_part(yaml.safe_load(text), yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())), name
