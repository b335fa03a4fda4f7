"""A checkpoint counts by its record alone."""

import pytest

from airflow_raytpu.model.errors import CheckpointError
from airflow_raytpu.runtime import files
from airflow_raytpu.runtime.commits import (
    RECORD,
    Commit,
    best_of,
    committed,
    folder,
    inventory,
    newest,
    prune,
    record,
    sweep,
)


@pytest.fixture(params=["file", "gs"])
def root(request, tmp_path):
    if request.param == "file":
        return (tmp_path / "checkpoints").as_uri()
    request.getfixturevalue("bucket")
    return "gs://runs/a%20run/checkpoints"


def save(root, step, request="one", commit=True):
    uri = folder(root, step)
    files.write_bytes(f"{uri}/data", b"x")
    if commit:
        record(Commit(step, uri, request, {"loss": 0.5}))


def steps(root, *lineage):
    return [commit.step for commit in committed(root, lineage)]


def test_the_newest_is_first_by_number(root):
    for step in (900, 1000, 80):
        save(root, step)

    assert steps(root, "one") == [1000, 900, 80]
    assert committed(root, ["one"])[0].metrics == {"loss": 0.5}


def test_a_torn_one_is_passed_over_with_a_warning(root, caplog):
    save(root, 100)
    save(root, 200, commit=False)
    save(root, 300)
    files.write_bytes(f"{folder(root, 300)}/{RECORD}", b'{"step": 3')

    assert steps(root, "one") == [100]
    assert [line for line in caplog.messages if "torn" in line and line.count("/200") == 1]
    assert [line for line in caplog.messages if "torn" in line and line.count("/300") == 1]


def test_attempts_outside_the_lineage_do_not_count(root):
    save(root, 300, request="zero")
    save(root, 100, request="one")

    assert steps(root, "one", "two") == [100]


def test_pruning_keeps_the_newest_of_the_lineage(root):
    save(root, 900, request="zero")
    for step in (100, 200, 300, 400):
        save(root, step, commit=step != 200)
    save(root, 500, commit=False)

    prune(root, 2, ["one"])

    assert files.children(root) == ["300", "400", "500"]


def test_pruning_removes_what_unfinished_saves_left_before_the_newest(root):
    for name in ("200.orbax-checkpoint-tmp", "400.orbax-checkpoint-tmp", "x.orbax-checkpoint-tmp"):
        files.write_bytes(f"{root}/{name}/data", b"x")
    save(root, 300)

    prune(root, 2, ["one"])

    assert files.children(root) == ["300", "400.orbax-checkpoint-tmp", "x.orbax-checkpoint-tmp"]


@pytest.mark.parametrize("root", ["file"], indirect=True)
def test_a_record_that_was_moved_with_its_folder_names_the_new_place(root, tmp_path):
    save(root, 100)
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")

    assert committed((tmp_path / "elsewhere").as_uri(), ["one"])[0].uri == (tmp_path / "elsewhere" / "100").as_uri()


def test_what_ray_and_unfinished_saves_leave_is_no_checkpoint(root):
    save(root, 100)
    files.write_bytes(f"{root}/checkpoint_manager_snapshot.json", b"{}")
    files.write_bytes(f"{root}/200.orbax-checkpoint-tmp-17/data", b"x")

    assert steps(root, "one") == [100]

    sweep(root)

    assert files.children(root) == ["100", "checkpoint_manager_snapshot.json"]


def test_a_checkpoint_that_lost_a_file_or_a_part_of_one_is_passed_over(root, caplog):
    for step in (100, 200, 300):
        uri = folder(root, step)
        files.write_bytes(f"{uri}/d/data", b"xyz")
        record(Commit(step, uri, "one", files=inventory(uri)))
    files.write_bytes(f"{folder(root, 300)}/d/data", b"xy")
    files.remove(f"{folder(root, 200)}/d/data")

    assert newest(root, ["one"]).step == 100
    assert "300 is torn (d/data has 2 of 3 bytes)" in caplog.text
    assert "200 is torn (d/data is missing)" in caplog.text


def test_the_best_is_never_pruned_and_of_equals_the_newest_stays(root):
    for step, loss in ((100, 1.0), (200, 1.0), (300, 3.0), (400, 2.0)):
        record(Commit(step, folder(root, step), "one", {"loss": loss}))

    prune(root, 1, ["one"], ("loss", "min"))

    assert files.children(root) == ["200", "400"]
    assert best_of(committed(root, ["one"]), ("loss", "max")).step == 400


def test_nothing_written_is_nothing_to_commit(root):
    with pytest.raises(CheckpointError, match="nothing was written"):
        inventory(folder(root, 100))
