"""Regular expressions drawn with a seed, of what Oniguruma and PCRE2 both read or seem to; and a tokenizer that shows their matches.

Its tokens are the bytes, and its normalizer puts a bar in the place of each match.  Left out are negated properties in brackets, whose newer characters are not
known here, and repeated groups, in which the two engines end a loop of empty matches differently."""
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import Regex

ATOMS = r"""\p{L} \p{N} \p{Lu} \p{Ll} \p{Lt} \p{Lm} \p{Lo} \p{M} \p{Mn} \p{Nd} \p{Nl} \p{No} \p{P} \p{Pd} \p{S} \p{Sm} \p{Sc} \p{So} \p{Sk} \p{Zs} \p{Cf} \p{Han}
\p{Latin} \p{Greek} \p{Cyrillic} \p{Hiragana} \p{Katakana} \p{Hangul} \p{Arabic} \p{Thai} \p{Devanagari} \p{Common} \p{han} \P{L} \p{^N} \P{Han} \s \S \w \W \d \D
[a-z] [^a-z] [^\s\p{L}\p{N}] [\r\n] [\p{L}\p{M}] [^\r\n\p{L}\p{N}] [\w\-] [^\w] [\d.] [^\S\r\n] [\S\n] [\s\S] [^\p{Han}] [\p{Greek}a] a b 's . [^\x{20}] \u4f60 [一-龥]
[぀-ゟ゠-ヿ] \x{e9} \. [!"#$%&]""".split()
QUANTIFIERS = ["", "", "", "", "+", "*", "?", "{1,3}", "{2}", "{2,}", "{,2}", "+?", "*?", "??", "{2}?", "{1,3}?", "++", "*+", "?+"]
EDGES = [r"\b", r"\B", "^", "$", r"\A", r"\z", "(?i)"]


def branch(rng, depth):
    out = ""
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        kind = rng.random()
        if depth > 1 or kind < 0.75:
            out += rng.choice(ATOMS) + rng.choice(QUANTIFIERS)
        elif kind < 0.85:
            out += rng.choice(("(?:", "(", "(?i:", "(?>")) + pattern(rng, depth + 1) + ")"
        elif kind < 0.9:
            out += rng.choice(("(?=", "(?!")) + pattern(rng, depth + 1) + ")"
        elif kind < 0.95:
            out += rng.choice(("(?<=", "(?<!")) + rng.choice(ATOMS) + ")"
        else:
            out += rng.choice(EDGES)
    return out


def pattern(rng, depth=0):
    return "|".join(branch(rng, depth) for _ in range(rng.choice((1, 1, 2, 3))))


def tokenizer_of(text):
    """Raises what the library raises of a pattern that it does not read."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tok.normalizer = normalizers.Replace(Regex(text), "|")
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    return tok
