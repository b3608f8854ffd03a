"""Trains the embedded default model and writes it as GGUF. See README.md for the command that does everything."""

import argparse
import json
import math
import pathlib
import time

import torch
import torch.nn.functional as F

import corpus
import export
import tokens
from llama import Config, Llama

HERE = pathlib.Path(__file__).parent
SEED = 1
WARMUP, COOLDOWN = 100, 200  # steps
BATCH = 8  # windows a step; a window is the end-of-text token and 511 tokens of training text


def windows(docs, size, generator):
    """One epoch: chapters in random order end to end, cut at a random phase, every window headed by the end-of-text token."""
    order = torch.randperm(len(docs), generator=generator).tolist()
    stream = torch.cat([docs[i] for i in order])
    phase = int(torch.randint(size, (1,), generator=generator))
    stream = torch.cat((stream[phase:], stream[:phase]))
    n = len(stream) // size
    x = torch.cat((torch.full((n, 1), tokens.EOT), stream[:n * size].view(n, size)), 1)
    return x[torch.randperm(n, generator=generator)]


def endless(docs, size, generator):
    """Batches of windows, one epoch after the other."""
    while True:
        x = windows(docs, size, generator)
        yield from x[:len(x) // BATCH * BATCH].split(BATCH)


def held_out_bits(model, docs, nbytes):
    """Bits per byte of documents in chunks of 256 tokens, each after the end-of-text token and nothing else."""
    model.eval()
    total = 0.0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for x in tokens.chunks(docs, 256).split(32):
            logits = model(x[:, :-1].clamp(min=0))
            total += F.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten(), ignore_index=-1, reduction="sum").item()
    model.train()
    return total / math.log(2) / nbytes


def optimizers(model, lr, decay):
    """Muon for the matrices of the blocks, AdamW for the embedding and the norms."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embd" not in n]
    embedding = [p for n, p in model.named_parameters() if "embd" in n]
    vectors = [p for n, p in model.named_parameters() if p.dim() == 1]
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=decay, momentum=0.95),
        torch.optim.AdamW([{"params": embedding, "weight_decay": decay / 10}, {"params": vectors, "weight_decay": 0.0}],
                          lr=lr / 5, betas=(0.9, 0.98)),
    ]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", default=str(HERE.parent / "default.gguf"))
    p.add_argument("--history", help="write the losses here, as JSON")
    p.add_argument("--steps", type=int, default=800)
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument("--decay", type=float, default=0.5)
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)

    texts, _ = corpus.split()
    tokenizer = tokens.train(texts["train"])
    docs = {part: tokens.encode(tokenizer, texts[part]) for part in texts}
    nbytes = {part: sum(map(len, texts[part])) for part in texts}
    config = Config(vocab=tokenizer.get_vocab_size())
    model = Llama(config, a.dropout)
    opts = optimizers(model, a.lr, a.decay)
    base = [[g["lr"] for g in o.param_groups] for o in opts]
    batches = endless(docs["train"], config.context - 1, generator)
    print(f"{sum(p.numel() for p in model.parameters())} weights, {a.steps} steps of {BATCH * (config.context - 1)} tokens, "
          f"{sum(map(len, docs['train']))} tokens in all", flush=True)

    start, running, history, best = time.time(), [], [], math.inf
    for step in range(1, a.steps + 1):
        # The rate is constant between a short rise and a linear fall to 0 over the last steps.
        scale = min(1.0, step / WARMUP, (a.steps - step + 1) / COOLDOWN)
        for o, lrs in zip(opts, base):
            for g, lr in zip(o.param_groups, lrs):
                g["lr"] = lr * scale
        batch = next(batches)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in opts:
            o.step()
            o.zero_grad(set_to_none=True)
        running.append(loss.item())
        if step % 100 == 0 or step == a.steps:
            line = {"step": step, "train_nats_per_token": round(sum(running) / len(running), 4)}
            running = []
            if step % 200 == 0 or step == a.steps:
                valid = held_out_bits(model, docs["valid"], nbytes["valid"])
                line["valid_bits_per_byte"] = round(valid, 4)
                if valid < best:
                    best = valid
                    export.write(a.out, model, tokenizer)
            history.append(line)
            print(line, f"{time.time() - start:.0f} s", flush=True)
    print(f"wrote {a.out}: the lowest loss on the valid chapters, {best:.4f} bits/byte before quantization")
    if a.history:
        pathlib.Path(a.history).write_text("[\n" + ",\n".join(map(json.dumps, history)) + "\n]\n")


if __name__ == "__main__":
    main()
