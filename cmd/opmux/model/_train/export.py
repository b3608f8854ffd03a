"""Writes the model as GGUF v3, architecture `llama`: matrices Q8_0, norms F32, the embedding doubling as the output matrix."""

import json

import gguf

import tokens

DESCRIPTION = ("A small English language model trained from scratch for opmux on the King James Bible "
               "(public domain; Debian's bible-kjv-text). Recipe: cmd/opmux/model/_train.")


def write(path, model, tokenizer):
    c = model.config
    w = gguf.GGUFWriter(path, "llama")
    w.add_type(gguf.GGUFType.MODEL)
    w.add_name("opmux default (King James Bible)")
    w.add_description(DESCRIPTION)
    w.add_license("CC0-1.0")
    w.add_languages(["en"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    w.add_context_length(c.context)
    w.add_embedding_length(c.dim)
    w.add_block_count(c.layers)
    w.add_feed_forward_length(c.ff)
    w.add_head_count(c.heads)
    w.add_head_count_kv(c.kv_heads)
    w.add_layer_norm_rms_eps(c.eps)
    w.add_rope_dimension_count(c.head_dim)
    w.add_rope_freq_base(c.rope_base)
    w.add_vocab_size(c.vocab)

    state = json.loads(tokenizer.to_str())["model"]
    vocab = [t for t, _ in sorted(state["vocab"].items(), key=lambda item: item[1])]
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["merges"]]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(vocab)
    w.add_token_types([gguf.TokenType.CONTROL if t == tokens.EOT_TEXT else gguf.TokenType.NORMAL for t in vocab])
    w.add_token_merges(merges)
    w.add_bos_token_id(tokens.EOT)
    w.add_eos_token_id(tokens.EOT)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)

    for name, p in model.state_dict().items():
        data = p.detach().float().numpy()
        if data.ndim == 2:
            data = gguf.quants.quantize(data, gguf.GGMLQuantizationType.Q8_0)
            w.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            w.add_tensor(name, data)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
