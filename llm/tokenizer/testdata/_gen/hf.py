"""The same vocabularies in the Hugging Face tokenizers library, with the regular expressions that models publish."""
from tokenizers import Tokenizer, Regex, models, pre_tokenizers as pre

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

def splits(*patterns):
    return [pre.Split(Regex(p), "isolated") for p in patterns]

PRE = {
    "gpt-2": splits(GPT2),
    "smollm": [pre.Digits(individual_digits=True)] + splits(GPT2),
    "llama-bpe": splits(LLAMA3),
    "dbrx": splits(LLAMA3),
    "qwen2": splits(QWEN2),
    "tekken": splits(TEKKEN),
}

def tokenizer(vocab, name):
    n = min(i for i, t in enumerate(vocab["tokens"]) if t == "<s>")  # the trained part
    t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(vocab["tokens"][:n])}, merges=[tuple(m.split(" ")) for m in vocab["merges"]], ignore_merges=name in ("llama-bpe", "tekken")))
    t.pre_tokenizer = pre.Sequence(PRE[name] + [pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    return t
