#!/usr/bin/env python3
"""Trains the tokenizers of families.py and writes families/*.json; and families_cases.json, what the tokenizers package makes of strings and ids by each.

  texts      drawn by strings.py, the same for all
  families   name -> ids of each text (special tokens parsed), of some as a prompt, and [ids, text with special tokens, text without]

Run it in an environment with the package of requirements.txt.  The training of unigram_* comes out a little
different with every run; ids are compared with the files that lie there (--cases keeps them).
"""
import json
import pathlib
import random
import sys

from tokenizers import Tokenizer

from families import FAMILIES
from strings import draw

HERE = pathlib.Path(__file__).resolve().parent
COMMON = ["<s>", "</s>", "<|im_end|>", "<|eot_id|>", "<think>", "<mask>", "[INST]", "<bos>"]


def main():
    folder = HERE / "families"
    folder.mkdir(exist_ok=True)
    texts = list(dict.fromkeys(t for t in draw(random.Random(16), COMMON, 80) if len(t) < 50))
    cases = {}
    for name, make in FAMILIES.items():
        path = folder / f"{name}.json"
        if "--cases" not in sys.argv:
            path.write_text(json.dumps(json.loads(make().to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
        tok = Tokenizer.from_file(str(path))
        encode = lambda text, more: tok.encode(text, add_special_tokens=more).ids
        rng = random.Random(name)
        size = tok.get_vocab_size()
        lists = [[rng.randrange(size) for _ in range(8)] for _ in range(40)] + [encode(t, True) for t in texts[:20]]
        normalized = {i for i, t in tok.get_added_tokens_decoder().items() if t.normalized}
        decoded = [[ids, tok.decode(ids, skip_special_tokens=False), tok.decode(ids, skip_special_tokens=True)] for ids in lists]
        decoded = [d for d in decoded if "\ufffd" not in d[1] and not normalized.intersection(d[0])]
        cases[name] = {"ids": [encode(t, False) for t in texts], "prompts": [encode(t, True) for t in texts[:5]], "decoded": decoded}
    text = json.dumps({"texts": texts, "families": cases}, separators=(",", ":")).replace("],[", "],\n[")
    (HERE / "families_cases.json").write_text(text + "\n")


main()
