"""What an author may say of a dataset."""

import json

import pytest

from airflow_raytpu.model.datasets import Dataset
from airflow_raytpu.model.errors import RequestError


@pytest.mark.parametrize(
    "stated",
    [
        Dataset("/x"),
        Dataset("/x", ragged="pad", columns=["a"]),
        Dataset("/x", format="images", image_size=[2, 3]),
    ],
)
def test_it_survives_json(stated):
    assert Dataset.of(json.loads(json.dumps(stated.to_dict()))) == stated


def test_an_address_alone_is_a_dataset():
    assert Dataset.of("/x") == Dataset("/x")
    assert Dataset("/x").to_dict() == {"uri": "/x"}


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"uri": "/x", "ragged": "keep"}, r"ragged='keep'.* Use one of drop, pad, raise"),
        ({"uri": "/x", "format": "csv"}, r"format='csv'.* Use one of parquet, arrow, images, tfrecord"),
        ({"uri": "/x", "columns": "a"}, "columns='a'"),
        ({"uri": "/x", "columns": []}, "columns"),
        ({"uri": "/x", "columns": [1]}, "columns"),
        ({"uri": "/x", "image_size": 28}, "image_size=28"),
        ({"uri": "/x", "image_size": [28, 0]}, "image_size"),
        ({"ragged": "pad"}, r"keys \['ragged'\]"),
        ({"uri": "/x", "raged": "pad"}, r"keys \['raged', 'uri'\]"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(stated, message):
    with pytest.raises(RequestError, match=f"(?s){message}"):
        Dataset.of(stated)
