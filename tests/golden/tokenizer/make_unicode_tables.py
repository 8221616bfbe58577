#!/usr/bin/env python3
"""Prints common/model/tokenizer/unicode_tables.h: where the tokenizers library's Unicode differs from that of Debian 12's libraries.

The library (0.23) has four tables of its own: Oniguruma's for patterns (Unicode 16), Rust's for digits, words and lower case (Unicode 17), and old ones for
normal forms and punctuation (Unicode 9).  PCRE2 10.42 has Unicode 14, utf8proc 2.8 Unicode 15.  Every code point is asked here, of both sides, and the
differences are written as ranges.

  python3 make_unicode_tables.py > ../../../common/model/tokenizer/unicode_tables.h      (needs the tokenizers package)
"""
import ctypes

from tokenizers import Regex, normalizers, pre_tokenizers

CODES = [c for c in range(1, 0x110000) if not 0xD800 <= c <= 0xDFFF]
TEXT = "".join(map(chr, CODES))
BYTES = TEXT.encode()
STABLE, COMPAT, DECOMPOSE = 2, 4, 16
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Cf".split()
SCRIPTS = """Arabic Armenian Balinese Bengali Bopomofo Cherokee Common Coptic Cuneiform Cyrillic Devanagari Egyptian_Hieroglyphs Ethiopic Georgian Greek Gujarati
Gurmukhi Han Hangul Hebrew Hiragana Inherited Javanese Kannada Katakana Khitan_Small_Script Khmer Khojki Lao Latin Malayalam Mongolian Myanmar Oriya Sinhala Syriac
Tamil Tangut Telugu Thaana Thai Tibetan Yi""".split()  # all others are as they were in Unicode 14
MARKS = (6, 7, 8)  # utf8proc's Mn, Mc, Me

pcre = ctypes.CDLL("libpcre2-8.so.0")
pcre.pcre2_compile_8.restype = pcre.pcre2_match_data_create_8.restype = ctypes.c_void_p
pcre.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)
utf8proc = ctypes.CDLL("libutf8proc.so.2")
utf8proc.utf8proc_map.restype = ctypes.c_ssize_t
libc = ctypes.CDLL(None)


class Property(ctypes.Structure):
    _fields_ = [("category", ctypes.c_int16), ("combining_class", ctypes.c_int16)]


utf8proc.utf8proc_get_property.restype = ctypes.POINTER(Property)


def pcre_set(pattern):
    error, offset = ctypes.c_int(), ctypes.c_size_t()
    code = pcre.pcre2_compile_8(pattern.encode(), ctypes.c_size_t(len(pattern)), ctypes.c_uint32(0x00080000 | 0x00020000), ctypes.byref(error), ctypes.byref(offset), None)
    assert code, pattern
    data = pcre.pcre2_match_data_create_8(ctypes.c_uint32(1), None)
    place = pcre.pcre2_get_ovector_pointer_8(ctypes.c_void_p(data))
    found, at = set(), 0
    while pcre.pcre2_match_8(ctypes.c_void_p(code), BYTES, ctypes.c_size_t(len(BYTES)), ctypes.c_size_t(at), ctypes.c_uint32(0x40000000), ctypes.c_void_p(data), None) > 0:
        found.update(map(ord, BYTES[place[0]:place[1]].decode()))
        at = place[1]
    return found


def oniguruma_set(pattern):
    return {ord(c) for piece, _ in pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True).pre_tokenize_str(TEXT) for c in piece}


def alone_set(step, between):
    """What a step cuts off from the character between."""
    return {ord(piece) for piece, _ in step.pre_tokenize_str(between.join(TEXT)) if len(piece) == 1 and piece != between}


def decomposed(text, options):
    raw, out = text.encode(), ctypes.c_void_p()
    n = utf8proc.utf8proc_map(raw, ctypes.c_ssize_t(len(raw)), ctypes.byref(out), options)
    result = ctypes.string_at(out.value, n).decode()
    libc.free(out)
    return result


def ranges(codes):
    out = []
    for c in sorted(codes):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def lines(items):
    line, out = " ", []
    for item in items:
        if len(line) + len(item) + 2 > 118:
            out.append(line)
            line = " "
        line += f" {item},"
    out.append(line.rstrip(","))
    return "\n".join(out)


def table(name, comment, codes):
    print(f"\n/* {comment} */\nstatic const struct code_range {name}[] = {{")
    print(lines(f"{{0x{a:X}, 0x{b:X}}}" for a, b in ranges(codes)) + "};")


def normal_atoms():
    """Code points that the library neither decomposes nor orders, and utf8proc does; and the second halves of pairs that only utf8proc composes."""
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    atoms = set()
    for c in CODES:
        char, combining = chr(c), utf8proc.utf8proc_get_property(c).contents.combining_class
        if nfd.normalize_str(char) == char != decomposed(char, STABLE | DECOMPOSE):
            atoms.update((c, ord(decomposed(char, STABLE | DECOMPOSE)[-1])))
        elif nfkd.normalize_str(char) == char != decomposed(char, STABLE | COMPAT | DECOMPOSE):
            atoms.add(c)
        elif combining and decomposed(char, STABLE | DECOMPOSE) == char:
            moved = nfd.normalize_str(f"a\u0345{char}") != f"a\u0345{char}", nfd.normalize_str(f"a{char}\u0334") != f"a{char}\u0334"
            if moved != (combining < 240, combining > 1):
                assert moved == (False, False), hex(c)
                atoms.add(c)
    return atoms


def main():
    print("""/* Where the Unicode of the tokenizers library (0.23) differs from that of PCRE2 10.42 and utf8proc 2.8.  The library
 * has newer tables for patterns, and old ones (Unicode 9) for normal forms and punctuation; ids must be equal on both.
 * Made by tests/golden/tokenizer/make_unicode_tables.py, which asks both sides about every code point.  With newer
 * versions of the two libraries the tables of newer code points are merely not needed any more. */
#ifndef LEASEHOLD_MODEL_TOKENIZER_UNICODE_TABLES_H
#define LEASEHOLD_MODEL_TOKENIZER_UNICODE_TABLES_H

#include <stdint.h>

struct code_range {
  uint32_t first, last;
};

/* General categories that only Oniguruma knows. */
struct newer_category {
  uint32_t first, last;
  char name[3];
};
static const struct newer_category newer_categories[] = {""")
    newer = [(a, b, c) for c in CATEGORIES for a, b in ranges(oniguruma_set(f"\\p{{{c}}}+") - pcre_set(f"\\p{{{c}}}+"))]
    print(lines(f'{{0x{a:X}, 0x{b:X}, "{c}"}}' for a, b, c in sorted(newer)) + "};")
    print("""
/* Scripts (Script, without Script_Extensions) that have more in Oniguruma. */
struct newer_script {
  uint32_t first, last;
  const char *name;
};
static const struct newer_script newer_scripts[] = {""")
    more = [(a, b, name) for name in SCRIPTS for a, b in ranges(oniguruma_set(f"\\p{{{name}}}+") - pcre_set(f"\\p{{sc:{name}}}+"))]
    print(lines(f'{{0x{a:X}, 0x{b:X}, "{name}"}}' for a, b, name in more) + "};")
    known_words = pcre_set(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]+")
    oniguruma_words = oniguruma_set(r"\w+") - known_words
    rust_words = {ord(c) for piece, _ in pre_tokenizers.Whitespace().pre_tokenize_str("!".join(TEXT)) if "!" not in piece for c in piece} - known_words
    numbers = alone_set(pre_tokenizers.Digits(individual_digits=True), "a")
    punctuation, known_punctuation = alone_set(pre_tokenizers.Punctuation(behavior="isolated"), "a"), pcre_set(r"[!-/:-@\[-`{-~\p{P}]+")
    table("newer_words", "Word characters of Oniguruma and Rust that PCRE2 does not know as such.", oniguruma_words & rust_words)
    table("oniguruma_words", "The same of Oniguruma alone.", oniguruma_words - rust_words)
    table("rust_words", "The same of Rust alone.", rust_words - oniguruma_words)
    table("rust_numbers", "Numbers of Rust that Oniguruma does not know as such.", numbers - oniguruma_set(r"\p{N}+"))
    table("newer_punctuation", "Punctuation of PCRE2 that the library does not know as such.", known_punctuation - punctuation)
    table("older_punctuation", "Punctuation of the library that is none any more.", punctuation - known_punctuation)
    table("normal_atoms", "What the library's normal forms leave alone and utf8proc's do not.", normal_atoms())
    marks = {ord(c) for c in TEXT} - {ord(c) for c in normalizers.StripAccents().normalize_str(TEXT)}
    known_marks = {c for c in CODES if utf8proc.utf8proc_get_property(c).contents.category in MARKS}
    table("newer_marks", "Marks of utf8proc that the library does not know as such.", known_marks - marks)
    table("older_marks", "Marks of the library that are none any more.", marks - known_marks)
    lower = normalizers.Lowercase()
    runs = []
    for c in CODES:
        low = lower.normalize_str(chr(c))
        if len(low) > 1 or ord(low) == utf8proc.utf8proc_tolower(c):
            assert len(low) == 1 or c == 0x130, hex(c)
        elif runs and runs[-1][1] == c - 1 and runs[-1][2] == ord(low) - c:
            runs[-1][1] = c
        else:
            runs.append([c, c, ord(low) - c])
    print("""
/* Letters that only Rust has in lower case, and how far away that is. */
struct newer_lower {
  uint32_t first, last;
  int32_t offset;
};
static const struct newer_lower newer_lowers[] = {""")
    print(lines(f"{{0x{a:X}, 0x{b:X}, {d}}}" for a, b, d in runs) + "};\n\n#endif")


main()
