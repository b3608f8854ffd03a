"""The tokenizer (GPT-2's byte-level BPE, trained here) and token streams."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 4096
EOT = 0  # <|endoftext|> begins every context and ends every document
EOT_TEXT = "<|endoftext|>"


def train(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[EOT_TEXT], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    return tokenizer


def encode(tokenizer, texts):
    """One int64 tensor a document, each closed by the end-of-text token."""
    return [torch.tensor(e.ids + [EOT]) for e in tokenizer.encode_batch(texts)]


def chunks(docs, size):
    """Rows of size+1: the end-of-text token, then size tokens of one document (less its own final end-of-text), -1 past its end."""
    rows = []
    for doc in docs:
        for piece in doc[:-1].split(size):
            row = torch.full((size + 1,), -1)
            row[0], row[1:1 + len(piece)] = EOT, piece
            rows.append(row)
    return torch.stack(rows)
