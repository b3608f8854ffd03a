"""Writes the golden files of package tokenizer into the folder above.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 gguf==0.19.0
    LLAMA_LIB=.../libllama.so python gen.py

The ids are llama.cpp's, through the C API of its shared library (npm has it prebuilt in @node-llama-cpp/linux-x64; version 3.22.1 was used, llama.cpp v0.5.0).
While writing, the script requires that Hugging Face's tokenizers (BPE) and sentencepiece (SPM) give the same ids, for all texts of the
list and for 3000 random ones; only for "tekken", where llama.cpp is known to simplify the letter cases, it prints the differences.
"""
import base64, json, os, random, sys, tempfile
import corpus, hf, llamacpp, vocabs

out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
tmp = tempfile.mkdtemp()
rand = random.Random(7)
fuzz = [corpus.fuzz_text(rand) for _ in range(3000)]

def save(name, x):
    with open(os.path.join(out, name), "w") as f:
        lines = ",\n".join(json.dumps(k) + ":" + json.dumps(v, ensure_ascii=False, separators=(",", ":")) for k, v in x.items())
        f.write("{\n" + lines + "\n}\n")

def load(v, pre=None, **flags):
    path = os.path.join(tmp, "v.gguf")
    vocabs.write_gguf(path, v, pre, **flags)
    return llamacpp.Llama(path)

def plain(t):
    return not any(s in t for s in ("<tool>", "</tool>", "[B]]", "aaa"))  # user-defined tokens are added tokens elsewhere

save("texts.json", dict(texts=corpus.TEXTS, special=corpus.SPECIAL, bytes=[base64.b64encode(b).decode() for b in corpus.BYTES]))

v = vocabs.bpe()
v["ids"], v["special"], v["eog"] = {}, {}, None
for pre in "gpt-2 smollm falcon default llama-bpe dbrx qwen2 tekken gpt-4o".split():
    m = load(v, pre)
    v["ids"][pre] = [m.encode(t.encode()) for t in corpus.TEXTS]
    v["special"][pre] = [[m.encode(t.encode()), m.encode(t.encode(), True, True)] for t in corpus.SPECIAL] if pre in ("gpt-2", "llama-bpe") else []
    v["eog"] = m.info()["eog"]
    if pre in hf.PRE:
        h = hf.tokenizer(v, pre)
        differ = [t for t in corpus.TEXTS + fuzz if plain(t) and m.encode(t.encode()) != h.encode(t, add_special_tokens=False).ids]
        print(pre, "differs from tokenizers for", len(differ), "of", len(corpus.TEXTS + fuzz))
        assert not differ or pre == "tekken"
save("bpe.json", v)

v, p = vocabs.spm_bpe(os.path.join(tmp, "spm.model"))
m = load(v)
v["ids"] = [m.encode(t.encode()) for t in corpus.TEXTS]
v["special"] = [[m.encode(t.encode()), m.encode(t.encode(), True, True)] for t in corpus.SPECIAL]
v["text"] = [m.decode(m.encode(t.encode(), False, True), False, True).decode() for t in corpus.SPECIAL]
v["eog"] = m.info()["eog"]
differ = [t for t in corpus.TEXTS + fuzz if plain(t) and m.encode(t.encode()) != p.encode(t)]
print("spm differs from sentencepiece for", len(differ), "of", len(corpus.TEXTS + fuzz))
assert not differ
m = load(v, add_add_space_prefix=False)
v["ids_noprefix"] = [m.encode(t.encode()) for t in corpus.TEXTS]
save("spm.json", v)
