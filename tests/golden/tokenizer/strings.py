"""Strings that tokenizers may disagree about, drawn with a seed: all scripts, code points newer than a library's Unicode, marks, spaces, emoji, NUL, bytes,
numbers, code, runs, special tokens whole and cut."""
import unicodedata

SPACES = [chr(c) for c in (9, 10, 11, 12, 13, 32, 32, 32, 0x85, 0xA0, 0x1680, 0x180E, 0x2003, 0x200B, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF)] + ["\r\n", "  ", "\n\n", "    "]
EMOJI = ["\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U0001f44d\U0001f3fd", "\U0001fae9", "\U0001fac8", "\U0001f6d8",
         "\U0001fa8a", "\U0001faea", "\U0001f3f4\U000e0067\U000e0062\U000e007f"]
WORDS = """the quick rollouts policy version naive caf\u00e9 Stra\u00dfe gradient leases Hello HELLO hElLo iPhone McDonald x1y2 don't I'm we'll THEY'LL 's 'S '\u017f it\u2019s e.g. a_b_c
fooBar __init__ http://example.com/a?b=c&d=%20 1,234.56 3.14e-10 0x1F 2024-06-07 $100 50% C++ #include <stdio.h> {"a":[1,2]} \\frac{a}{b} !=== -> ... \u2026 \u2014 \u00ab\u00bb \u2018\u2019
\u041f\u0440\u0438\u0432\u0435\u0442 \u03ba\u03cc\u03c3\u03bc\u03b5 \u4f60\u597d\u4e16\u754c \u6570\u5b66 \u3053\u3093\u306b\u3061\u306f \u30ab\u30bf\u30ab\u30ca \uac00\ub098\ub2e4 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e20\u0e32\u0e29\u0e32
\u0130stanbul \ufb01ne \u2460\u2461 \u216b \u00bd \u00b2 \uff21\uff22\uff11 \u1e9e \u01c5 \u0345 solo Gru\u00df soloist two""".split()
# Blocks that Unicode 10 and later added or filled, beyond what old tables know.
NEW_BLOCKS = [(0x860, 0x8E1), (0x1C80, 0x1C8A), (0x2BBA, 0x2BFF), (0x2FF0, 0x2FFF), (0x31BB, 0x31EF), (0xA7AE, 0xA7FF), (0x10780, 0x107BA), (0x10D40, 0x10D8F), (0x10EC0, 0x10EFF),
              (0x11380, 0x113E2), (0x11900, 0x11959), (0x11A00, 0x11AA2), (0x11BC0, 0x11BF9), (0x11D60, 0x11DEF), (0x11F00, 0x11F5A), (0x13430, 0x1345F), (0x16100, 0x16139),
              (0x16D40, 0x16D79), (0x16EA0, 0x16ED9), (0x16FE0, 0x16FFF), (0x1CC00, 0x1CD00), (0x1CF00, 0x1CF46), (0x1DF00, 0x1DF2A), (0x1E030, 0x1E08F), (0x1E4D0, 0x1E4F9),
              (0x1E5D0, 0x1E5FF), (0x1F6D0, 0x1F6FF), (0x1F900, 0x1FAFF), (0x1FB00, 0x1FBFF), (0x2EBF0, 0x2EE5D), (0x31350, 0x323AF), (0x323B0, 0x33479)]
MARKS = [chr(c) for c in range(0x300, 0x3100) if unicodedata.combining(chr(c))] + [chr(c) for c in (0x1DF6, 0x8D3, 0x1AC0, 0x11930, 0x11935, 0x11938, 0x16FF0, 0x1E4EC, 0x1E08F)]
DIGITS = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF and unicodedata.category(chr(c))[0] == "N"]


def any_char(rng):
    kind = rng.random()
    if kind < 0.25:
        return chr(rng.randint(0, 0x7F))
    if kind < 0.55:
        return chr(rng.randint(0x80, 0x33FF))
    if kind < 0.7:
        first, last = rng.choice(NEW_BLOCKS)
        return chr(rng.randint(first, last))
    if kind < 0.75:
        return rng.choice(DIGITS)
    while True:
        c = rng.choice((rng.randint(0x3400, 0xFFFF), rng.randint(0x10000, 0x1FFFF), rng.randint(0x20000, 0x10FFFF)))
        if not 0xD800 <= c <= 0xDFFF:
            return chr(c)


def part(rng, tokens):
    kind = rng.randrange(13)
    if kind <= 2:
        return rng.choice(WORDS)
    if kind == 3:
        return rng.choice(SPACES) * rng.choice((1, 1, 1, 2, 3, 7))
    if kind == 4:
        return "".join(any_char(rng) for _ in range(rng.randint(1, 6)))
    if kind == 5:
        return rng.choice(EMOJI)
    if kind == 6:
        return rng.choice("aeoAn\u0915\u1112q1") + "".join(rng.choice(MARKS) for _ in range(rng.randint(1, 5)))
    if kind == 7:
        token = rng.choice(tokens)
        return token if rng.random() < 0.7 else token[:rng.randint(0, len(token))]
    if kind == 8:
        return bytes(rng.randrange(256) for _ in range(rng.randint(1, 8))).decode(rng.choice(("latin-1", "utf-8")), "replace")
    if kind == 9:
        return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 9)))
    if kind == 10:
        return rng.choice(("\0", "\u2581", "\u2581\u2581", "<0x0A>", "<0xFF>", "<s>", "</s>", "<unk>", "\u0120", "[INST]", "\u1100\u1161\u11a8", "\u212b", "\ufdfa", "\u3300"))
    if kind == 11:
        return rng.choice("ab =-_#\n.!\u4f60\u00e9") * rng.randint(2, 40)
    first, last = rng.choice(NEW_BLOCKS)
    return "".join(rng.choice((chr(rng.randint(first, last)),) * 3 + tuple("a1. \n")) for _ in range(rng.randint(1, 7)))


# Each holds something that a plausible mistake gets wrong, and chance seldom draws.
AWKWARD = [
    "", " ", "  a", "a\n b \n\n", "x \n", "\x01a b", "\u0301a b", "..a b", "aba b", "abq zz", "qqbq", "\u0130I\u0307 \u1e9e \u03a3\u03a3", "a\u1df6\u0301", "\u0928\U00011935\U00011930\u093c",
    "e\u08d3\u0323\u0301", "\U00010d50\U00010d70 x\U00010d51", "\U0001e4d0\U0001e4f0\U0001e4f9 \U00016d70\U00016d71", "\U000323b0x \U0002ebf0y", "\u0661\u0662\U00016130\U00011de0 \u00b2\u2460",
    "\u166d\u0df4\u2e44!", "\u200cab\u200d solo\u200c solo \u24b6solo", "\u00a4 a\u00a4\u00a4 \u4f60\u4f61\u4f62a\u4f63", "<s></s><unk> <s>", "a<m>  b<m> <m>\n  two  ", "  two   two    two  ",
    "x<|user|>  y <|user|>\n", "'S 'LL 's\u017f I'Re", "12345678 1,2", "[INST] a [/INST]", "\u2581\u2581a \u2581", "\ufb01\u212b\uac01\u1100\u1161\u11a8", "a;b:cc bx!?.1 \uff1b",
    "the\nthe\n the \n", " a\U00010d50a 1\U00011de01 .\u2e44. a\u166da", "\u4f60\u2e44\u4f60\u166d\u4f60\U00011de0\u4f60", "aaaa a\n", "q a b a", "~ policy policy~", "the been the been like zebra", "\ua000\U00011de0\ua000",
    "A\u0301\u0323BCd eF \u01c5z", "\u180e \u180e a", "\x00\x00a\x00", "\u0c3c\u0301 \u1cf2a\u1cf3", "\u3042\u30a2\u4e00a1", "<0x0A><0xff>", "if (a) {\n\t\treturn;\n}\n\n",
]


def draw(rng, tokens, count):
    """The awkward ones, then drawn ones.  tokens: contents of added tokens."""
    tokens = list(tokens) or ["<x>"]
    yield from AWKWARD[:count]
    for _ in range(count - len(AWKWARD)):
        text = "".join(part(rng, tokens) + (" " if rng.random() < 0.4 else "") for _ in range(rng.choice((0, 1, 1, 2, 3, 5, 8, 13))))
        yield text.encode("utf-8", "replace").decode()
