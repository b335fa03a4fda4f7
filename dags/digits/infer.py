"""Batch inference: what the model makes of a batch of rows. Compiled once, run over every chip of the slice."""

from __future__ import annotations


def predict(model, batch):
    """The digit in each row and how sure the model is of it. *batch* holds the input's columns as arrays."""
    import jax

    from digits.model import Classifier

    probabilities = jax.nn.softmax(Classifier().apply(model["params"], batch["pixels"]))
    return {"digit": probabilities.argmax(axis=-1).astype("int32"), "confidence": probabilities.max(axis=-1)}
