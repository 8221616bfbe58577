"""The tokenizers of model families in small: each with its family's real normalizer, pre-tokenizer, model options, decoder, post-processor and kinds of added
tokens, trained on made-up text by the tokenizers package.  Used by make_families.py, which writes them to families/."""
import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

MARK = "\u2581"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
NEMO = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
VOCABULARY = 640


def training_text():
    rng = random.Random(20261122)
    words = """the a of to and in that it is was for on with as his they at be this from have or by one had not but what all were when we there can an your which
    their said if do will each about how up out them then she many some so these would other into has more her two like him see time could no make than first been
    its who now people my made over did down only way find use may water long little very after words called just where most know token policy rollout gradient
    lease version reward worker answer question number think step therefore because equals compute na\u00efve caf\u00e9 \u00fcber se\u00f1or fa\u00e7ade Stra\u00dfe""".split()
    foreign = """\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 \u03ba\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u03ba\u03cc\u03c3\u03bc\u03b5 \u4f60\u597d \u4e16\u754c \u6570\u5b66 \u554f\u984c \u3053\u3093\u306b\u3061\u306f
    \uc548\ub155\ud558\uc138\uc694 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 \U00010d70\U00010d71\U00010d72""".split()
    out = []
    for _ in range(3000):
        sentence = " ".join(rng.choice(words) for _ in range(rng.randint(3, 12)))
        kind = rng.random()
        if kind < 0.2:
            a, b = rng.randint(0, 9999), rng.randint(0, 99)
            sentence += f" {a}+{b}={a + b}; {a} * {b} = {a * b}.\n\n"
        elif kind < 0.3:
            sentence = f"    if ({rng.choice(words)} != {rng.choice(words)}) {{\n\t    return {rng.randint(0, 9)};\n    }}\n"
        elif kind < 0.45:
            sentence += " " + " ".join(rng.choice(foreign) for _ in range(3))
        elif kind < 0.55:
            sentence = f"I'm sure they've said it's {sentence}, we'll see; you'd don't"
        out.append(sentence.capitalize() if kind > 0.5 else sentence)
    for run in (" ", "=", "a", "\n", "the "):  # merges upon merges, as real vocabularies have them
        out += ["x" + run * n + "x" for n in (2, 4, 8, 16, 32, 64) for _ in range(40)]
    return out


def special(text, **more):
    return AddedToken(text, special=True, normalized=False, **more)


def plain(text, normalized=False, **more):
    return AddedToken(text, special=False, normalized=normalized, **more)


def first_token(tok, text):
    return processors.TemplateProcessing(single=f"{text} $A", pair=f"{text} $A {text} $B", special_tokens=[(text, tok.token_to_id(text))])


def with_seams(tok):
    """Adds merges, after all others, of what is seldom neighbours within a word: else most wrong splits would show in no id."""
    data = json.loads(tok.to_str())
    vocab, merges = data["model"]["vocab"], data["model"]["merges"]
    char = dict(zip(sorted(b for b in range(256) if chr(b).isprintable() and b not in (0x20, 0xA0, 0xAD)), [c for c in BYTES if ord(c) < 256]))
    rest = iter(c for c in BYTES if ord(c) >= 256)
    char.update((b, next(rest)) for b in range(256) if b not in char)
    leads, tails = [char[b] for b in (0xD9, 0xE1, 0xEA, 0xF0)], [char[b] for b in range(0x80, 0xC0)]
    pairs = [(a, b) for a in (char[0x20], char[0x0A], "a", "e", "1", ".") for b in leads] + [(a, b) for a in tails for b in ("a", "e", "1", ".", char[0xF0], char[0xE1])]
    for a, b in pairs:
        if a + b not in vocab:
            vocab[a + b] = len(vocab)
            merges.append([a, b])
    return Tokenizer.from_str(json.dumps(data))


def byte_level(pre, added, normalizer=None, ignore_merges=False, first=None):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(training_text(), trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=BYTES, show_progress=False))
    tok = with_seams(tok)
    tok.add_tokens(added)
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    if first:
        tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), first_token(tok, first)])
    return tok


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)


def splits(*steps, regex=False):
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=regex)])


def qwen():
    added = [special(s) for s in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] + [plain(s) for s in ("<tool_call>", "</tool_call>", "<think>", "</think>")]
    return byte_level(splits(split(QWEN)), added, normalizers.NFC())


def llama3():
    added = [special(s) for s in ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")]
    return byte_level(splits(split(LLAMA3)), added, ignore_merges=True, first="<|begin_of_text|>")


def gpt2():
    tok = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), [AddedToken("<|endoftext|>", special=True, normalized=True)])
    return tok


def neox():
    runs = [plain(" " * n, normalized=True) for n in range(2, 25)]
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), [special("<|endoftext|>"), special("<|padding|>"), *runs], normalizers.NFC())


def deepseek3():
    pre = splits(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK3))
    added = [special("<\uff5cbegin\u2581of\u2581sentence\uff5c>"), special("<\uff5cend\u2581of\u2581sentence\uff5c>"), plain("<\uff5cUser\uff5c>"), plain("<\uff5cAssistant\uff5c>"),
             plain("<think>", normalized=True), plain("</think>", normalized=True)]
    return byte_level(pre, added, normalizers.Sequence([]), first="<\uff5cbegin\u2581of\u2581sentence\uff5c>")


def deepseek_coder():
    pre = splits(split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"), pre_tokenizers.Digits(individual_digits=True))
    added = [special("<\uff5cbegin\u2581of\u2581sentence\uff5c>"), special("<|EOT|>"), plain("<\uff5cfim\u2581hole\uff5c>", normalized=True)]
    return byte_level(pre, added, normalizers.Sequence([]), first="<\uff5cbegin\u2581of\u2581sentence\uff5c>")


def deepseek_llm():
    letters = "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u0481\u048a-\u052f\u0531-\u0556"
    pre = splits(split(r"[\r\n]"), split(rf"\s?[{letters}]+"), split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"), split(r"\s+$"),
                 split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"), pre_tokenizers.Digits(individual_digits=True))
    return byte_level(pre, [special("<\uff5cbegin\u2581of\u2581sentence\uff5c>")], normalizers.Sequence([]), first="<\uff5cbegin\u2581of\u2581sentence\uff5c>")


def starcoder():
    return byte_level(splits(pre_tokenizers.Digits(individual_digits=True), regex=True), [special(s) for s in ("<|endoftext|>", "<fim_prefix>", "<fim_middle>", "<reponame>")])


def nemo():
    return byte_level(splits(split(NEMO)), [special(s) for s in ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]")], ignore_merges=True, first="<s>")


def sentencepiece(normalizer, pre, decoder, added, first, specials=("<unk>", "<s>", "</s>"), fuse=True):
    """BPE over characters: the vocabulary begins with the special tokens and the 256 bytes, as SentencePiece's does."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse, byte_fallback=True))
    if normalizer is not None:
        tok.normalizer = normalizer
    if pre is not None:
        tok.pre_tokenizer = pre
    names = [f"<0x{b:02X}>" for b in range(256)]
    training = Tokenizer(models.BPE(unk_token="<unk>"))
    training.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK)
    training.train_from_iterator(training_text(), trainers.BpeTrainer(vocab_size=256 + VOCABULARY, special_tokens=[*specials, *names], show_progress=False))
    data = json.loads(tok.to_str())
    trained = json.loads(training.to_str())["model"]
    data["model"].update(vocab=trained["vocab"], merges=trained["merges"])
    tok = Tokenizer.from_str(json.dumps(data))
    tok.add_special_tokens([special(s) for s in specials])
    tok.add_tokens(added)
    tok.decoder = decoder
    tok.post_processor = first_token(tok, first)
    return tok


def spm_decoder(strip):
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(content=" ", left=1, right=0)] if strip else []))


def llama2():
    return sentencepiece(normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), None, spm_decoder(True), [plain("<pad>", normalized=True)], "<s>")


def mistral():
    return sentencepiece(None, pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False), spm_decoder(True), [special("[INST]"), special("[/INST]")], "<s>")


def phi3():
    added = [special(s, rstrip=True) for s in ("<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>")]
    return sentencepiece(normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), None, spm_decoder(True), added, "<s>")


def gemma():
    added = [plain(MARK * n) for n in range(2, 12)] + [plain("\n" * n) for n in range(2, 6)] + [plain("<table>"), plain("<start_of_image>"), special("<start_of_turn>"), special("<end_of_turn>")]
    return sentencepiece(normalizers.Replace(" ", MARK), pre_tokenizers.Split(" ", "merged_with_previous"), spm_decoder(False), added, "<bos>",
                         specials=("<pad>", "<eos>", "<bos>", "<unk>"))


def unigram(normalizer, pre, byte_fallback, added):
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    names = [f"<0x{b:02X}>" for b in range(256)] if byte_fallback else []
    tok.train_from_iterator(training_text(), trainers.UnigramTrainer(vocab_size=VOCABULARY, special_tokens=["<unk>", "<s>", "</s>", *names], unk_token="<unk>", show_progress=False))
    data = json.loads(tok.to_str())
    data["model"]["byte_fallback"] = byte_fallback
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    tok = Tokenizer.from_str(json.dumps(data))
    tok.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(replacement=MARK)]) if byte_fallback else decoders.Metaspace(replacement=MARK)
    tok.add_tokens(added)
    tok.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", tok.token_to_id("</s>"))])
    return tok


def unigram_nmt():
    normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()])
    return unigram(normalizer, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement=MARK)]), False, [special("<mask>", lstrip=True)])


def unigram_bytes():
    return unigram(normalizers.Sequence([normalizers.NFKC()]), pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False), True, [special("<|user|>"), plain("solo", single_word=True)])


def words():
    """No family's: every other step and behavior."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tok.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Replace("...", "\u2026"), normalizers.Strip(left=False), normalizers.NFD()])
    steps = pre_tokenizers.Sequence([
        split("^t|e$"), split(r"[a-z]+[;:]", "merged_with_next"), split(r"[bx]+", "contiguous"), split(r"[aeiou](?=\W)|\d", "merged_with_previous"), split("\\w+|\\s+", "isolated", True),
        pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(individual_digits=False)])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, split=False)  # for training: tokens that the steps then cut show where they do
    tok.train_from_iterator(training_text(), trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<unk>"], show_progress=False))
    tok.pre_tokenizer = steps
    tok.decoder = decoders.Sequence([decoders.Replace(Regex("[.;]+"), " ."), decoders.Fuse()])
    tok.add_tokens([plain("solo", single_word=True), plain("Gru\u00df", normalized=True), plain("<m>", lstrip=True, rstrip=True), plain("  two  ")])
    tok.post_processor = processors.BertProcessing(("<unk>", 0), ("<m>", tok.token_to_id("<m>")))
    return tok


def odd():
    """No family's: what removes the text's beginning before Metaspace asks for it, empty matches, fused unknown characters, special tokens that text can spell."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False, ignore_merges=True))
    tok.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.StripAccents(), normalizers.Replace("..", ""), normalizers.Replace("ab", "b"), normalizers.Lowercase(), normalizers.NFC(),
                                            normalizers.Strip(left=False)])
    steps = pre_tokenizers.Sequence([split("(?=[bz])|q+"), pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False), split("a", "merged_with_previous")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, split=False)
    tok.train_from_iterator(training_text(), trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<unk>", "<s>", "</s>", "\u00a4", "~"], show_progress=False))
    tok.pre_tokenizer = steps
    assert tok.token_to_id("policy")
    tok.add_special_tokens([special("policy")])  # which merges make
    tok.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="never")
    around = [(t, tok.token_to_id(t)) for t in ("<s>", "</s>")]
    tok.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(single="<s> </s> $A </s>", special_tokens=around)])
    return tok


FAMILIES = {f.__name__: f for f in (qwen, llama3, gpt2, neox, deepseek3, deepseek_coder, deepseek_llm, starcoder, nemo, llama2, mistral, phi3, gemma, unigram_nmt, unigram_bytes, words, odd)}
