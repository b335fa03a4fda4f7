"""The model, in Flax: shared by training, inference and serving."""

from __future__ import annotations

from flax import linen as nn


class Classifier(nn.Module):
    """Pixels (batch, 64) in, ten logits (batch, 10) out."""

    hidden: int = 128

    @nn.compact
    def __call__(self, pixels):
        hidden = nn.relu(nn.Dense(self.hidden)(pixels))
        return nn.Dense(10)(hidden)
