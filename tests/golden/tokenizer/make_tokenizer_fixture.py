#!/usr/bin/env python3
"""Makes the tokenizer fixtures with Hugging Face's tokenizers library (0.22): three small byte-level BPE tokenizers and what they make of awkward strings.

  qwen2.json          NFC, the Qwen2 split regex, special tokens after the vocabulary, merges as pairs
  gpt2.json           ByteLevel's own regex, special tokens first, added tokens that strip, stand alone or are normalized, merges as strings
  ignore_merges.json  Digits, a prefix space, ignore_merges with half of the merges gone
  cases.json          for each tokenizer and text: ids with special tokens parsed and not; for id lists: the decoded bytes

Deterministic: run it in this folder and the files come out the same.
"""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
QWEN2_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def training_text():
    """Sentences of a made-up grammar: English-like words, sums, code, some accents, Greek, Cyrillic and CJK."""
    rng = random.Random(20240607)
    words = """the a of to and in that it is was for on with as his they at be this from have or by one had not but what all were when we there can an your which
    their said if do will each about how up out them then she many some so these would other into has more her two like him see time could no make than first been its
    who now people my made over did down only way find use may water long little very after words called just where most know token policy rollout gradient lease
    version reward worker answer question number think step therefore because equals compute naïve café über señor déjà façade Straße ångström""".split()
    foreign = ["Привет", "мир", "как", "дела", "καλημέρα", "κόσμε", "你好", "世界", "数学", "問題", "こんにちは", "안녕하세요", "שלום", "مرحبا", "नमस्ते"]
    lines = []
    for i in range(4000):
        n = rng.randint(3, 12)
        sentence = " ".join(rng.choice(words) for _ in range(n))
        kind = rng.random()
        if kind < 0.2:
            a, b = rng.randint(0, 999), rng.randint(0, 999)
            sentence += f" {a}+{b}={a + b}; {a} * {b} = {a * b}."
        elif kind < 0.3:
            sentence = f"    if ({rng.choice(words)} != {rng.choice(words)}) {{\n        return {rng.randint(0, 9)};\n    }}"
        elif kind < 0.45:
            sentence += " " + " ".join(rng.choice(foreign) for _ in range(3))
        elif kind < 0.55:
            sentence = f"I'm sure they've said it's {sentence}, we'll see; you'd don't"
        lines.append(sentence.capitalize() if kind > 0.5 else sentence)
    return lines


def make_qwen2():
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_REGEX), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(training_text(), trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tok.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in SPECIALS])
    tok.add_tokens([AddedToken(s, normalized=False, special=False) for s in ("<think>", "</think>")])
    return tok


def make_gpt2():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(training_text(), trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=SPECIALS,
                                                                 show_progress=False))
    tok.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False, special=True)])
    tok.add_tokens([AddedToken("solo", single_word=True, normalized=False), AddedToken("<|im", normalized=False), AddedToken("Gruß", normalized=True)])
    data = json.loads(tok.to_str())
    data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
    return Tokenizer.from_str(json.dumps(data)), data


def make_ignore_merges(qwen2):
    data = json.loads(qwen2.to_str())
    data["model"]["ignore_merges"] = True
    data["model"]["merges"] = data["model"]["merges"][: len(data["model"]["merges"]) // 2]
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": False},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]}
    data["added_tokens"].append({"id": data["added_tokens"][-1]["id"] + 1, "content": "e\u0301x", "single_word": False, "lstrip": False, "rstrip": False,
                                 "normalized": True, "special": False})
    return Tokenizer.from_str(json.dumps(data)), data


TEXTS = [
    "", " ", "  ", "\n", "\r\n", "\n\n\n", " \n", "\n ", "\t\tx", "a", "hello world", "Hello, World!", "  leading and trailing  ", "the  two   three    spaces",
    "I'm we've IT'S THEY'LL don't 'tis 'S", "it\u2019s a curly apostrophe", "'\u017f long s", "0123456789", "12 345 6,789.00", "3+4*5-6=17; #17", "\u0661\u0662\u0663 \u00bd \u2167 \u00b2",
    "caf\u00e9", "cafe\u0301", "e\u0301\u0323 e\u0323\u0301", "A\u030a \u212b \u00c5", "\ufb01 \u2126 \u212a", "\u1100\u1161\u11a8 \uac01", "o\u0302\u0301\u0328\u0327x",
    "a" + "\u0301\u0316" * 40, "\u0301 lone accent", "\u0344 \u0958 \u2adc", "q\u0307\u0323", "na\u00efve fa\u00e7ade Stra\u00dfe",
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family", "\U0001f1e9\U0001f1ea\U0001f3f4\U000e0067\U000e0062", "\u2764\ufe0f\U0001f44d\U0001f3fd ok",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u6570\u5b66\u554f\u984c 12\u5e74", "\u3053\u3093\u306b\u3061\u306f\u3001\u30ab\u30bf\u30ab\u30ca", "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u03ba\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1", "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627", "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u00a0nbsp\u2003em\u3000ideographic\u2028line\u0085next", "a\u180eb a\u180e b", "a     \u180e b", "zero\u200bwidth\ufeffbom", "\u00ff\u00fe\u00c3\u0028", "\x01\x02\x1f\x7f control",
    "<|endoftext|>", "<|im_start|>user\nhi there<|im_end|>\n<|im_start|>assistant\n", "x<|im_end|>y<|im_end|><|im_end|>", "<|im_en|><|im_end|<|im_end|>>", "<|im_start<|im_start|>",
    "<think>so 2+2=4</think>4", "a  <mask>  b <mask><mask>\nc", "solo soloist asolo (solo) solo", "Gru\u00df und Gru\u00dfwort", "e\u0301x \u00e9x",
    "    if (x != y) {\n        return 0;\n    }\n", "a" * 300, "ab " * 60, "=" * 70 + "\n\n" + "-" * 33, "x \n\n  \n y\r\n\tz", "\U0010ffff\ufffd\ue000 private",
    "the policy version of each rollout is the lease's", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u1019\u103c\u1014\u103a\u1019\u102c",
]


def byte_of_char():
    kept = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b <= 0xFF]
    moved = [b for b in range(256) if b not in kept]
    return {**{chr(b): b for b in kept}, **{chr(256 + i): b for i, b in enumerate(moved)}}


ALPHABET = byte_of_char()


def decoded_bytes(tok, ids, skip):
    """What the ids stand for, byte by byte; checked against the library's own (lossy) text."""
    added = {i: t for i, t in tok.get_added_tokens_decoder().items()}
    out = b""
    for i in ids:
        if i in added:
            out += b"" if skip and added[i].special else added[i].content.encode()
        else:
            out += bytes(ALPHABET[c] for c in tok.id_to_token(i))
    if not any(i in added and added[i].content == "Gru\u00df" for i in ids):  # the library reads such an added token as alphabet
        assert out.decode("utf-8", "replace") == tok.decode(ids, skip_special_tokens=skip), (ids, out)
    return out


def encode(tok, text, parse_special):
    tok.encode_special_tokens = not parse_special
    return tok.encode(text, add_special_tokens=False).ids


def main():
    qwen2 = make_qwen2()
    gpt2, gpt2_data = make_gpt2()
    ignore, ignore_data = make_ignore_merges(qwen2)
    files = {"qwen2": (qwen2, json.loads(qwen2.to_str())), "gpt2": (gpt2, gpt2_data), "ignore_merges": (ignore, ignore_data)}
    rng = random.Random(7)
    cases = {}
    for name, (tok, data) in files.items():
        (HERE / f"{name}.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
        encodings = []
        for text in TEXTS:
            special, plain = encode(tok, text, True), encode(tok, text, False)
            encodings.append({"text": text, "ids": special, **({"plain": plain} if plain != special else {})})
        size = tok.get_vocab_size()
        lists = [[], [0], [size - 1], list(range(size))] + [[rng.randrange(size) for _ in range(12)] for _ in range(20)]
        lists += [[i] for i in range(0, size, 37)] + [encode(tok, t, True) for t in (TEXTS[36], TEXTS[53])]
        decodings = [{"ids": ids, "bytes": decoded_bytes(tok, ids, False).hex(), "skipped": decoded_bytes(tok, ids, True).hex()} for ids in lists]
        cases[name] = {"vocabulary": size, "encodings": encodings, "decodings": decodings}
    text = json.dumps(cases, ensure_ascii=True, separators=(",", ":")).replace('},{"', '},\n{"')
    (HERE / "cases.json").write_text(text + "\n")


main()
