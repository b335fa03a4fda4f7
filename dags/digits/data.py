"""The data: 1,797 real scanned digits that scikit-learn ships (UCI optical digits, 8 x 8 pixels)."""

from __future__ import annotations

from typing import Any


def write_parquet(root: str, files: int = 4, seed: int = 0, test_rows: int = 357) -> dict[str, str]:
    """Write the digits as Parquet below the URI *root*, in *files* files for training and as many for the test.

    The split depends on *seed* alone. Columns: ``id`` (text), ``pixels`` (64 floats from 0 to 1), ``label`` (0 to 9).

    :returns: URIs of ``train``, ``test``, and of a place for the ``scores``.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow.fs import FileSystem
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    filesystem, folder = FileSystem.from_uri(root)
    for name, rows in (("train", order[test_rows:]), ("test", order[:test_rows])):
        filesystem.create_dir(f"{folder}/{name}", recursive=True)
        for number, part in enumerate(np.array_split(rows, files)):
            pixels = pa.array(list((digits.data[part] / 16).astype(np.float32)), pa.list_(pa.float32(), 64))
            labels = pa.array(digits.target[part], pa.int32())
            table = pa.table({"id": [f"digit-{row:04d}" for row in part], "pixels": pixels, "label": labels})
            pq.write_table(table, f"{folder}/{name}/digits-{number:02d}.parquet", filesystem=filesystem)
    return {name: f"{root}/{name}" for name in ("train", "test", "scores")}


def accuracy(scores: str) -> float:
    """Of the scored rows below the URI *scores*, the part whose digit is the label."""
    import pyarrow.compute as pc

    table = _read(scores, ["label", "digit"])
    return float(pc.mean(pc.equal(table["label"], table["digit"])).as_py())


def ask(endpoint: str, test: str, row: int = 0) -> dict[str, Any]:
    """What the service at *endpoint* says of one test digit, beside what the digit is."""
    import json
    from urllib.request import Request, urlopen

    digit = _read(test, ["id", "pixels", "label"]).slice(row, 1).to_pylist()[0]
    body = json.dumps({"pixels": digit["pixels"]}).encode()
    with urlopen(Request(endpoint, body, {"Content-Type": "application/json"}), timeout=30) as response:
        return {"id": digit["id"], "label": digit["label"], "status": response.status, "answer": json.load(response)}


def _read(uri: str, columns: list[str]) -> Any:
    import pyarrow.parquet as pq
    from pyarrow.fs import FileSystem

    filesystem, folder = FileSystem.from_uri(uri)
    return pq.read_table(folder, columns=columns, filesystem=filesystem)
