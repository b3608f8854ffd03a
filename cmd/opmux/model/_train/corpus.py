"""The corpus: the King James Bible as printed by Debian's `bible` program (packages bible-kjv and bible-kjv-text).

A document is a chapter: its verses, one a line, without their references. The split goes by rule, never by chance:

    books     every chapter of Ruth, Jonah and James (whole books that training never sees)
    test      every 30th chapter of the others (29, 59, ...): the reported figure
    valid     every 30th chapter of the others, half way between (14, 44, ...): choosing and early stopping
    train     the rest
"""

import hashlib
import os
import re
import subprocess

SHA256 = "cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d"
HELD_OUT_BOOKS = ("Ruth", "Jonah", "Jas")


def dump():
    """The whole text as `bible` prints it: one verse a line, `Ge1:1 In the beginning ...`."""
    command = [os.environ.get("BIBLE", "bible"), "-f"]
    if os.environ.get("BIBLE_LIB"):
        command += ["-p", os.environ["BIBLE_LIB"]]
    text = subprocess.run(command + ["gen1:1-rev22:21"], check=True, capture_output=True).stdout
    found = hashlib.sha256(text).hexdigest()
    if found != SHA256:
        raise SystemExit(f"corpus: the text of this bible-kjv-text has sha256 {found}, the recipe was written for {SHA256}")
    return text.decode("ascii")


def chapters():
    """[(book, chapter, text)] in reading order; the text ends with a newline."""
    out = []
    for line in dump().splitlines():
        book, chapter, text = re.fullmatch(r"(\d?[A-Za-z]+)(\d+):\d+ (.*)", line).groups()
        if not out or out[-1][:2] != (book, int(chapter)):
            out.append((book, int(chapter), []))
        out[-1][2].append(" ".join(text.split()))
    return [(book, chapter, "\n".join(verses) + "\n") for book, chapter, verses in out]


def split():
    """{"train" | "valid" | "test" | "books": [chapter text]} and the names of the same chapters."""
    texts = {"train": [], "valid": [], "test": [], "books": []}
    names = {part: [] for part in texts}
    n = 0
    for book, chapter, text in chapters():
        if book in HELD_OUT_BOOKS:
            part = "books"
        else:
            part = {14: "valid", 29: "test"}.get(n % 30, "train")
            n += 1
        texts[part].append(text)
        names[part].append(f"{book} {chapter}")
    return texts, names


if __name__ == "__main__":
    texts, names = split()
    for part in texts:
        print(part, len(texts[part]), "chapters", sum(map(len, texts[part])), "bytes", "" if part == "train" else names[part])
