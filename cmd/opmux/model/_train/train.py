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
    p.add_argument("--epochs", type=int, default=16)
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument("--decay", type=float, default=0.5)
    p.add_argument("--dropout", type=float, default=0.15)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--max-steps", type=int, default=0, help="stop here (for measuring)")
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
    per_epoch = len(windows(docs["train"], config.context - 1, torch.Generator().manual_seed(0))) // BATCH
    steps = a.epochs * per_epoch
    print(f"{sum(p.numel() for p in model.parameters())} weights, {steps} steps of {BATCH * (config.context - 1)} tokens", flush=True)

    start, step, history = time.time(), 0, []
    for epoch in range(a.epochs):
        x = windows(docs["train"], config.context - 1, generator)
        running = 0.0
        for i in range(per_epoch):
            batch = x[i * BATCH:(i + 1) * BATCH]
            scale = min(1.0, (step + 1) / 100) * min(1.0, (steps - step) / (0.6 * steps))
            for o, lrs in zip(opts, base):
                for g, lr in zip(o.param_groups, lrs):
                    g["lr"] = lr * scale
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for o in opts:
                o.step()
                o.zero_grad(set_to_none=True)
            running += loss.item()
            step += 1
            if step % 50 == 0:
                print(f"  step {step} loss {loss.item():.4f} {time.time() - start:.0f} s", flush=True)
            if step == a.max_steps:
                print(f"valid {held_out_bits(model, docs['valid'], nbytes['valid']):.4f} bits/byte")
                return
        history.append({"epoch": epoch + 1, "train_nats_per_token": round(running / per_epoch, 4),
                        "valid_bits_per_byte": round(held_out_bits(model, docs["valid"], nbytes["valid"]), 4)})
        print(f"epoch {epoch + 1}: train {running / per_epoch:.4f} nats/token, "
              f"valid {history[-1]['valid_bits_per_byte']:.4f} bits/byte, {time.time() - start:.0f} s", flush=True)

    export.write(a.out, model, tokenizer)
    print("wrote", a.out)
    (HERE / "history.json").write_text(json.dumps(history, indent=1) + "\n")


if __name__ == "__main__":
    main()
