"""The model, in Flax: a decoder-only transformer over bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flax import linen as nn

TOKENS = 256
HEAD = 32
"""Width of one head of attention."""


class Transformer(nn.Module):
    """Tokens (batch, length) in, logits of the next token (batch, length, 256) out.

    :param width: size of what is known of one token; a multiple of :data:`HEAD`.
    :param layers: how many blocks.
    :param place: applied to what goes from block to block; says how it is laid out over a mesh.
    """

    width: int
    layers: int
    place: Callable[[Any], Any] = lambda hidden: hidden

    @nn.compact
    def __call__(self, tokens):
        length = tokens.shape[1]
        embed = nn.Embed(TOKENS, self.width)
        position = self.param("position", nn.initializers.normal(0.02), (length, self.width))
        hidden = self.place(embed(tokens) + position)
        for _ in range(self.layers):
            hidden = self.place(Block(self.width)(hidden))
        return embed.attend(nn.LayerNorm()(hidden))


class Block(nn.Module):
    """Attention to what came before, then a layer for each token alone."""

    width: int

    @nn.compact
    def __call__(self, hidden):
        before = nn.make_causal_mask(hidden[..., 0])
        hidden += nn.MultiHeadDotProductAttention(self.width // HEAD, use_bias=False)(
            nn.LayerNorm()(hidden), mask=before
        )
        wide = nn.gelu(nn.Dense(4 * self.width, use_bias=False)(nn.LayerNorm()(hidden)))
        return hidden + nn.Dense(self.width, use_bias=False)(wide)
