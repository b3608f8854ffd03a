"""Trains the two small vocabularies (deterministic) and writes them as GGUF for llama.cpp."""
import io, json, gguf, sentencepiece as spm
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from corpus import corpus, TEXTS

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

def bpe():
    # No word splitting while training: merges then cross every boundary that a pre-tokenizer draws, so that a wrong boundary changes the ids.
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tr = trainers.BpeTrainer(vocab_size=1400, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), max_token_length=9, show_progress=False)
    t.train_from_iterator([c for c in corpus()], tr)
    m = json.loads(t.to_str())["model"]
    tokens = [k for k, _ in sorted(m["vocab"].items(), key=lambda kv: kv[1])]
    merges = [x if isinstance(x, str) else " ".join(x) for x in m["merges"]]
    types = [NORMAL] * len(tokens)
    for s, ty in [("<s>", CONTROL), ("</s>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<|endoftext|>", NORMAL), ("<tool>", USER), ("</tool>", USER), ("aaa", USER),
                  ("<|a|>", CONTROL), ("<|a|><|b|>", CONTROL), ("|>x<|", CONTROL), ("[A]", CONTROL), ("[B]", CONTROL), ("[B]]", USER), ("[AB]", CONTROL), ("[PAD]", UNUSED)]:
        if s in tokens:
            types[tokens.index(s)] = ty
        else:
            tokens.append(s); types.append(ty)
    return dict(model="gpt2", tokens=tokens, types=types, merges=merges, bos=tokens.index("<s>"), eos=tokens.index("</s>"), unk=-1)

def spm_bpe(path):
    out = io.BytesIO()
    lines = [l for c in corpus() for l in c.replace("\0", " ").split("\n") if l]
    spm.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, model_type="bpe", vocab_size=1200, byte_fallback=True, character_coverage=0.995,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True, split_digits=True, allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2,
        user_defined_symbols=["<tool>", "</tool>", "[B]]"], control_symbols=["<|im_start|>", "<|im_end|>", "<|a|>", "<|a|><|b|>", "|>x<|", "[A]", "[B]", "[AB]"])
    open(path, "wb").write(out.getvalue())
    p = spm.SentencePieceProcessor(model_file=path)
    tokens, scores, types = [], [], []
    for i in range(p.get_piece_size()):
        ty = NORMAL
        if p.is_unknown(i): ty = UNKNOWN
        elif p.is_control(i): ty = CONTROL
        elif p.is_byte(i): ty = BYTE
        elif p.is_unused(i): ty = UNUSED
        elif p.id_to_piece(i) in ("<tool>", "</tool>", "[B]]"): ty = USER
        tokens.append(p.id_to_piece(i)); scores.append(p.get_score(i)); types.append(ty)
    return dict(model="llama", tokens=tokens, scores=scores, types=types, bos=p.bos_id(), eos=p.eos_id(), unk=p.unk_id()), p

def write_gguf(path, v, pre=None, **flags):
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model(v["model"])
    if pre: w.add_tokenizer_pre(pre)
    w.add_token_list(v["tokens"]); w.add_token_types(v["types"])
    if "scores" in v: w.add_token_scores(v["scores"])
    if "merges" in v: w.add_token_merges(v["merges"])
    w.add_bos_token_id(v["bos"]); w.add_eos_token_id(v["eos"])
    if v["unk"] >= 0: w.add_unk_token_id(v["unk"])
    for k, x in flags.items(): getattr(w, k)(x)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.close()
