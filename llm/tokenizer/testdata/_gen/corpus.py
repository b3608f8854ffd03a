"""Texts: what the small vocabularies are trained on, and what the golden ids are recorded for."""
import random

PROSE = """It was a bright cold day, and the clocks weren't striking; they'd stopped. "Don't you think we're late?" she said. I'll go,
you've seen it, he's there, I'm here, that'd do. The old house, the river and the other side of the other hill. There is nothing new.
In the beginning there were 3 apples, 14 pears, 159 plums and 2653589 grains of sand. On 2024-02-29 at 23:59:60 it cost $1,234.56 (12%).
Über den Wolken müssen die Straßen schön sein. À bientôt, ça va très bien, naïve façade, coöperate. ¿Dónde está el niño? ¡Mañana!
Привет, мир! Как дела? Всё хорошо. Γειά σου Κόσμε, πώς είσαι; שלום עולם. مرحبا بالعالم. नमस्ते दुनिया। สวัสดีชาวโลก
你好，世界！今天天气很好。我们去公园吧。こんにちは世界。カタカナとひらがな。안녕하세요 세계. 𠀀𠀁 漢字
for (int i = 0; i < n; ++i) {\n\tif (a[i] != b[i]) return -1; // mismatch\n}\n\ndef f(x, *args, **kwargs):\n    return x ** 2 if x >= 0 else None\n
<html><body class="x">&amp;</body></html> {"key": [1, 2, 3.5e-10], "b": null} SELECT * FROM t WHERE id = 'x'; a_b c-d e/f\\g ~/.config #tag @user
emoji 😀😀 👍🏽 👨‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️ ✈️ math ∑∫√∞ ≠ ≤ αβγ ½ ² Ⅷ ① ٣٤٥ ५६७ quotes “x” ‘y’ «z» — – … • ™ © ®
"""

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\t", " \n", "\n ", " \n ", "\r\n", "\r\n\r\n", "a", "a ", " a", " a ", "  a", "a  b", "a   b", "a\nb", "a \nb", "a\n b",
    "a \n b", "a\n\n\nb", "a\t\tb", "\ta", "a\r\nb", "a \r\n  b", "  \n  \n  x", "x  \n\n", "x \t \n \t y", "end   ", "end\n", "\n\n  \n",
    "Hello world", "Hello, world!", "hello  world", "The quick brown fox jumps over the lazy dog.", "HELLO WORLD", "HeLLo WoRLD", "helloWorld HTTPServer iPhone",
    "don't can't I'll we've they're he'd it's I'm", "DON'T CAN'T I'LL WE'VE THEY'RE HE'D IT'S I'M", "'s 't 're", "'S'T'RE 'LL 'Ve", "''''s", "'", "' s", " 's", " 'tis", "a'b'c", "it'ſ", "x'sx'tx'llx",
    "don’t it’s", "0", "1", "12", "123", "1234", "12345", "1234567890", " 1 22 333 4444", "3.14159", "1,000,000", "-5", "+1-555-0100", "2024-02-29T23:59:60Z", "a1b22c333", "1a 2b", "0x1F 0b101 1e-9",
    "½ ² Ⅷ ① ٣٤٥ ५६७ 三百", "12½", "x²+y²=z²", "...", "?!?!", "!!!\n\n", " ... ", "a.b,c;d:e", "(a) [b] {c} <d>", "$100 100$ €5 £6 ¥7", "C++ C# a&&b a||b !x ~y ^z", "`code` ```\nblock\n```", "a_b __init__ -- --- ==",
    "<html>\n  <body>\n\t</body>\n</html>", "{\"a\": [1, 2.5, -3e10], \"b\": null}", "if (x == 1) {\n    return y;\n}\n", "\tfor i in range(10):\n\t\tprint(i)\n\n\n", "https://example.org/a/b?c=d&e=%20#f", "C:\\dir\\file.txt", "user@example.com", "path/to//file/\n/x", "a/ b /c\n//\n/", "#!/bin/sh\necho \"$1\" | sed 's/a/b/'",
    "Über Straße naïve façade", "e\u0301 a\u0308 n\u0303", "Ünïcödé \u0301x", "\u0301", "ﬁ ﬂ Ⅳ ℃", "ÀÉÎ àéî ÀéÎ", "ABéCD éAB aÉb ÉÉ éé Éa aÉ ABCé", "ǅ ǈ ʰʷ ªº", "Привет, мир!", "ПРИВЕТ мир Мир", "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم ١٢٣", "नमस्ते दुनिया", "สวัสดีชาวโลก", "你好，世界！", "今天天气很好。我们去。", "こんにちは世界", "カタカナ ｶﾀｶﾅ", "안녕하세요 세계", "𠀀𠀁𪜀", "漢字kanji漢字",
    "😀", "😀😀 😀", "👍🏽 👨‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️", "a😀b", " 😀 ", "∑∫√∞≠", "“quotes” ‘x’ «y»", "— – … • ™", "\u00a0a\u00a0\u00a0b\u00a0", "\u3000全角\u3000", "a\u2028b\u2029c", "a\u0085b \u0085", "\u200b\u200cx\u200d \ufeff", "\u00ad x", "\ue000 \U000f0000 \U0010ffff", "\u0378 \u0600 \u061c", "\ufffd x\ufffd", "\x00", "a\x00b\x00\x00", "\x01\x02 \x1c\x1d\x1e\x1f \x7f", "\x0b\x0c a", "\u1680a\u2003b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "                 ", "----------------", "\n\n\n\n\n\n\n\n", "ababababababab", "the the the", "theother thereother", " the\nthe  the", "▁", "▁▁ a▁b", "Ġ Ċ ĠĠ Ã©", "<0x41> <0x0A>",
]

BYTES = [b"\xff", b"\x80", b"a\xffb", b"\xc3", b"\xc3(", b"\xe4\xbd", b"\xe4\xbd\xa0\xe5", b"\xf0\x9f\x98", b"x\xf0\x9f\x98\x80\xf0\x9f", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe\xfe\xff\xff", b" \xff \xfe\n\xfd", b"1\xff2", b"'\xff's"]

SPECIAL = [
    "<s>", "</s>", "<s>Hello</s>", "a</s>b", " </s> ", "a </s> b", "</s></s>", "<unk>x", "<s", "s>", "<<s>>", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|im_start|", "<|endoftext|>",
    "<tool>x</tool>", "a<tool>", " <tool> y", "x<|a|>y", "<|a|><|b|>", "<|a|><|b|><|a|>", "|>x<|", "<|a|>x<|b|>", "<|a|>x<|", "<|a|>x<|c", "<|c|><|d|>", "xaaax", "aa<aaa>aaa", "[A][B][AB]", "[A][B]]", "\n<tool>\n", "日本</s>語",
]

def corpus(n=4000, seed=1):
    r = random.Random(seed)
    words = PROSE.split(" ") + TEXTS
    out = [PROSE] * 4
    for _ in range(n):
        k = r.randrange(1, 9)
        out.append(r.choice(["", " ", "  ", "\n", "\t"]) + r.choice([" ", " ", "  ", "", "\n"]).join(r.choice(words) for _ in range(k)))
    return out

ALPHABET = list("abcdefghABCDESTRVMLD'''     \n\n\r\t0123456789.,!?-_/\\|<>$+=^~`@#&*()[]{}\";:") + list("éÉßſİµªʰǅ你好日本あカ안😀👍🏽‍\u0301\u0308½²Ⅷ٣५\u00a0\u3000\u2003\u2028\u0085\u200b\ufeff\ue000\u0378\ufffd\x00\x01\x1c\x1f\x7f\x0b\x0c「。，…—“’€∑▁Ġ𠀀\u0600") 
PIECES = ["'s", "'ll", "'RE", " the", "  ", "\n\n", "\r\n", "123", "1234", "...", " (", "é", "AB", "ab", "Aé", "éA", "</s>", "<s>", "<tool>", "    ", " don't", "://", "//\n", "?\n", " \n"]

def fuzz_text(r):
    n = int(2 ** r.uniform(0, 6))
    return "".join(r.choice(PIECES) if r.random() < .3 else r.choice(ALPHABET) for _ in range(n))
