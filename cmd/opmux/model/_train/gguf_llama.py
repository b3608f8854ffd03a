"""Reads an exported model file back: a float32 Llama of the dequantized weights, and its tokenizer. Knows only the file."""

import gguf
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from llama import Config, Llama


def load(path):
    """(model, tokenizer) of a GGUF file."""
    reader = gguf.GGUFReader(path)

    def field(name):
        return reader.fields[name].contents()

    config = Config(
        vocab=field("llama.vocab_size"), dim=field("llama.embedding_length"), layers=field("llama.block_count"),
        heads=field("llama.attention.head_count"), kv_heads=field("llama.attention.head_count_kv"),
        ff=field("llama.feed_forward_length"), context=field("llama.context_length"),
        eps=field("llama.attention.layer_norm_rms_epsilon"), rope_base=field("llama.rope.freq_base"))
    model = Llama(config)
    model.load_state_dict({t.name: torch.tensor(gguf.quants.dequantize(t.data, t.tensor_type)) for t in reader.tensors})
    model.eval()

    vocab = {t: i for i, t in enumerate(field("tokenizer.ggml.tokens"))}
    merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return model, tokenizer
