"""The plain Llama decoder, in PyTorch: RMSNorm, rotary positions on interleaved pairs (2i, 2i+1), grouped-query attention, SwiGLU.

Parameter names are GGUF tensor names and matrices lie as GGUF stores them (rows = outputs), so a state_dict is the model file.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab: int = 4096
    dim: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    ff: int = 640
    context: int = 512
    eps: float = 1e-5
    rope_base: float = 10000.0

    @property
    def head_dim(self):
        return self.dim // self.heads


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def rope_table(c):
    """The rotation of position p and pair i as a complex number, [context, head_dim/2]."""
    inv = c.rope_base ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
    angle = torch.arange(c.context, dtype=torch.float64)[:, None] * inv
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)


def rope(x, turn):
    """Rotates the pairs (2i, 2i+1) of x[batch, heads, time, head_dim]."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


class Block(nn.Module):
    def __init__(self, c, dropout):
        super().__init__()
        kv = c.kv_heads * c.head_dim
        self.attn_norm = RMSNorm(c.dim, c.eps)
        self.attn_q = nn.Linear(c.dim, c.dim, bias=False)
        self.attn_k = nn.Linear(c.dim, kv, bias=False)
        self.attn_v = nn.Linear(c.dim, kv, bias=False)
        self.attn_output = nn.Linear(c.dim, c.dim, bias=False)
        self.ffn_norm = RMSNorm(c.dim, c.eps)
        self.ffn_gate = nn.Linear(c.dim, c.ff, bias=False)
        self.ffn_up = nn.Linear(c.dim, c.ff, bias=False)
        self.ffn_down = nn.Linear(c.ff, c.dim, bias=False)
        self.head_dim = c.head_dim
        self.drop = nn.Dropout(dropout)

    def forward(self, x, turn, cache):
        h = self.attn_norm(x)
        q, k, v = (f(h).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for f in (self.attn_q, self.attn_k, self.attn_v))
        q, k = rope(q, turn), rope(k, turn)
        if cache is not None:
            if cache:
                k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
            cache[:] = k, v
        group = q.shape[1] // k.shape[1]
        a = F.scaled_dot_product_attention(
            q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), is_causal=q.shape[2] > 1)
        x = x + self.drop(self.attn_output(a.transpose(1, 2).flatten(2)))
        h = self.ffn_norm(x)
        return x + self.drop(self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h)))


class Llama(nn.Module):
    """Token ids [batch, time] -> hidden states or logits; the output matrix is the embedding."""

    def __init__(self, config, dropout=0.0):
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.vocab, config.dim)
        self.blk = nn.ModuleList(Block(config, dropout) for _ in range(config.layers))
        self.output_norm = RMSNorm(config.dim, config.eps)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("turn", rope_table(config), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                last = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(p, std=0.02 / (2 * config.layers) ** 0.5 if last else 0.02)

    def forward(self, ids, cache=None):
        """cache: None, or a list of one list a layer ([] at first) that this call extends; then ids follow what it holds
        (many tokens only while it is empty)."""
        past = cache[0][0].shape[2] if cache and cache[0] else 0
        turn = self.turn[past:past + ids.shape[1]]
        x = self.drop(self.token_embd(ids))
        for i, block in enumerate(self.blk):
            x = block(x, turn, None if cache is None else cache[i])
        return F.linear(self.output_norm(x), self.token_embd.weight)
