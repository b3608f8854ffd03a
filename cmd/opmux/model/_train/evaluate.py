"""Measures an exported model file: bits per byte on held-out text, and how often a sample copies 12 tokens of the training text.

    evaluate.py                      both, on ../default.gguf; rewrites ../heldout.txt and ../heldout.json
    evaluate.py --check FILE...      the longest run of each text's tokens that stands in the training text
"""

import argparse
import json
import math
import pathlib

import torch
import torch.nn.functional as F

import corpus
import tokens
from gguf_llama import load

HERE = pathlib.Path(__file__).parent
RUN = 12
PROMPTS = ("", "In the beginning", "And the king said", "Blessed is the man", "Now when Jesus")
SETTINGS = (  # temperature, top_k, top_p
    (0.7, 0, 0.95), (0.8, 0, 0.95), (0.8, 40, 0.95), (0.9, 0, 0.95), (1.0, 0, 0.95), (1.0, 40, 0.95), (1.0, 0, 1.0), (1.2, 40, 0.95))


def nats(model, docs):
    """-log p summed over the tokens of each document: chunks of 256 tokens, each after the end-of-text token and nothing else."""
    out = []
    for doc in docs:
        x = tokens.chunks([doc], 256)
        with torch.no_grad():
            logits = torch.cat([model(rows) for rows in x[:, :-1].clamp(min=0).split(16)])
        out.append(F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), ignore_index=-1, reduction="sum").item())
    return out


def sliding_nats(model, docs):
    """The same with more context: windows of 512 tokens, each adding 256 tokens to those already scored."""
    out = []
    for doc in docs:
        ids = torch.cat((torch.tensor([tokens.EOT]), doc[:-1]))
        total, done = 0.0, 1
        while done < len(ids):
            end = min(len(ids), 512 if done == 1 else done + 256)
            begin = max(0, end - 512)
            with torch.no_grad():
                logits = model(ids[None, begin:end - 1])[0]
            total += F.cross_entropy(logits[done - 1 - begin:], ids[done:end], reduction="sum").item()
            done = end
        out.append(total)
    return out


class Training:
    """The set of all 12-token runs inside the training documents."""

    def __init__(self, docs):
        self.runs = {tuple(d[i:i + RUN]) for d in map(torch.Tensor.tolist, docs) for i in range(len(d) - RUN + 1)}

    def longest(self, ids):
        """(length, position) of the longest run of ids that stands in the training text; lengths under 12 count as 0."""
        best, at, hits = 0, 0, 0
        for i in range(len(ids) - RUN + 1):
            hits = hits + 1 if tuple(ids[i:i + RUN]) in self.runs else 0
            if hits and hits + RUN - 1 > best:
                best, at = hits + RUN - 1, i - hits + 1
        return best, at


def sample(model, prompt, count, n, temperature, top_k, top_p, generator):
    """count texts of n tokens (the prompt's included) after the end-of-text token; one that ends early is cut there."""
    ids = torch.tensor([tokens.EOT] + prompt).repeat(count, 1)
    cache = [[] for _ in model.blk]
    step = ids
    with torch.no_grad():
        while ids.shape[1] <= n:
            logits = model(step, cache)[:, -1] / temperature
            if top_k:
                logits[logits < logits.topk(top_k).values[:, -1:]] = -math.inf
            probs, order = logits.softmax(-1).sort(-1, descending=True)
            probs[probs.cumsum(-1) - probs > top_p] = 0
            step = order.gather(1, torch.multinomial(probs, 1, generator=generator))
            ids = torch.cat((ids, step), 1)
    out = []
    for row in ids[:, 1:].tolist():
        out.append(row[:row.index(tokens.EOT)] if tokens.EOT in row else row)
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default=str(HERE.parent / "default.gguf"))
    p.add_argument("--check", nargs="+", metavar="FILE", help="text files")
    p.add_argument("--samples", type=int, default=200)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    model, tokenizer = load(a.model)
    texts, names = corpus.split()
    docs = {part: tokens.encode(tokenizer, texts[part]) for part in texts}
    training = Training(docs["train"])

    for path in a.check or ():
        ids = tokenizer.encode(pathlib.Path(path).read_text()).ids
        length, at = training.longest(ids)
        print(f"{path}: {len(ids)} tokens; longest run of {RUN} or more that stands in the training text: {length}"
              + (f": {tokenizer.decode(ids[at:at + length])!r}" if length else ""))
    if a.check:
        return

    # One short text for other implementations to check themselves on: a book that training never saw.
    jonah = "".join(t for t, name in zip(texts["books"], names["books"]) if name.startswith("Jonah "))
    (HERE.parent / "heldout.txt").write_text(jonah)
    doc = tokens.encode(tokenizer, [jonah])
    bits = nats(model, doc)[0] / math.log(2)
    (HERE.parent / "heldout.json").write_text(json.dumps({
        "text": "heldout.txt", "chunk": 256, "tokens": len(doc[0]) - 1, "bytes": len(jonah),
        "bits_per_byte": round(bits / len(jonah), 6)}, indent=1) + "\n")
    print((HERE.parent / "heldout.json").read_text())

    for part in ("train", "valid", "test", "books"):
        some = docs[part][::30] if part == "train" else docs[part]
        size = [len(tokenizer.decode(d[:-1].tolist())) for d in some]
        chunked, sliding = nats(model, some), sliding_nats(model, some)
        print(f"{part:6} {sum(size):7} bytes  chunks of 256: {sum(chunked) / math.log(2) / sum(size):.4f} bits/byte  "
              f"sliding 512: {sum(sliding) / math.log(2) / sum(size):.4f}")
        if part == "test":
            far = [i for i, d in enumerate(some) if not training.longest(d.tolist())[0]]
            print(f"       of these the {len(far)} chapters without a {RUN}-token run of the training text, "
                  f"{sum(size[i] for i in far)} bytes: {sum(chunked[i] for i in far) / math.log(2) / sum(size[i] for i in far):.4f}")

    pieces = [d[i:i + 120].tolist() for part in ("test", "books") for d in docs[part] for i in range(0, len(d) - 120, 120)]
    found = sum(training.longest(piece)[0] > 0 for piece in pieces)
    print(f"held-out text itself: {found} of {len(pieces)} pieces of 120 tokens have a {RUN}-token run of the training text")
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    for temperature, top_k, top_p in SETTINGS:
        generator = torch.Generator().manual_seed(1)
        rows = [r for prompt in prompts for r in sample(
            model, prompt, a.samples // len(prompts), 120, temperature, top_k, top_p, generator)]
        runs = [training.longest(r)[0] for r in rows]
        print(f"temperature {temperature} top_k {top_k} top_p {top_p}: {sum(map(bool, runs))} of {len(rows)} samples "
              f"({sum(map(len, rows))} tokens) have one; the longest is {max(runs)}", flush=True)


if __name__ == "__main__":
    main()
