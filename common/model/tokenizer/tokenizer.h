/* Text to token ids and back as a Hugging Face tokenizer.json says: byte-level BPE (GPT-2, Qwen, Llama 3, DeepSeek,
 * StarCoder), BPE over characters with byte fallback (Llama 2, Mistral, Gemma, Phi-3) and Unigram.  Immutable after
 * loading, so any thread may use it.
 *
 * Ids equal those of the tokenizers library; settings that would give others are refused by name while loading.  Ids
 * travel end to end: the text of sampled ids is for people and verifiers, and is never encoded again.
 */
#ifndef LEASEHOLD_MODEL_TOKENIZER_TOKENIZER_H
#define LEASEHOLD_MODEL_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/rc.h"
#include "common/model/tokenizer/token_ids.h"

struct tokenizer;

/* json: the bytes of tokenizer.json.  RC_INVALID for unsupported models and steps (the message says which), cycles
 * or duplicate ids.  Ids that no token has are like those above the vocabulary. */
enum rc tokenizer_parse(struct tokenizer **out, const char *json, size_t len, struct err *err);
enum rc tokenizer_load(struct tokenizer **out, const char *path, struct err *err);
/* The tokenizer.json of a model's folder.  NULL and RC_OK where the folder has no tokenizer at all; RC_UNSUPPORTED,
 * with the file's name, where it has one of another form only (tokenizer.model, tekken.json, vocab.json). */
enum rc tokenizer_load_folder(struct tokenizer **out, const char *dir, struct err *err);
void tokenizer_free(struct tokenizer *t);
int32_t tokenizer_vocabulary(const struct tokenizer *t); /* largest id + 1, added tokens included */
/* Once, before a tokenizer encodes for a model.  Ids from the model's vocab_size on have no row in its embedding.
 * Added tokens may have them, as Gemma 3's "<image_soft_token>" where the model reads no images: a text that would
 * become one is RC_INVALID then.  RC_INVALID when the vocabulary's own, or what a prompt begins or ends with, do. */
enum rc tokenizer_fit(struct tokenizer *t, int32_t vocab_size, struct err *err);

/* Appends ids; out is as before on failure.  RC_INVALID when the text is not UTF-8 or a character has no token;
 * RC_TOO_LARGE when this text alone has more than tokens_max tokens.  parse_special: special tokens in the text
 * become their ids; without it they are plain text, and no text becomes a special token.  Added tokens that are not
 * special ("<think>") become their ids either way.  No first token is added (Hugging Face:
 * add_special_tokens=False). */
enum rc tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool parse_special, size_t tokens_max,
                         struct token_ids *out, struct err *err);
/* The same for a whole prompt that is not a chat's: special tokens are parsed, and the file's post-processor adds its
 * first and last tokens ("<s>"), as transformers does unless told otherwise. */
enum rc tokenizer_encode_prompt(const struct tokenizer *t, const char *text, size_t len, size_t tokens_max,
                                struct token_ids *out, struct err *err);
/* How many tokens it adds on either side. */
void tokenizer_affixes(const struct tokenizer *t, size_t *before, size_t *after);
/* Appends bytes (possibly an incomplete UTF-8 sequence at the end). Ids above the vocabulary, which only pad the
 * model's embedding, have no text, as in Hugging Face; negative ones and those above LIMIT_VOCABULARY are RC_INVALID.
 * A file may say that the space before the first word is left out. */
enum rc tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                         struct buf *out, struct err *err);
/* The same for ids that continue a text, as a completion continues its prompt: every space is there. */
enum rc tokenizer_decode_more(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                              struct buf *out, struct err *err);
/* The same bytes of one id, in the tokenizer's memory; NULL and 0 of an id without text. */
const char *tokenizer_token_text(const struct tokenizer *t, int32_t id, bool skip_special, size_t *len);
/* The id of an added or vocabulary token by its exact content, -1 when there is none, or none that fits the model. */
int32_t tokenizer_id_of(const struct tokenizer *t, const char *content);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);

/* Chat messages to text in the ChatML form that Qwen models are trained on:
 * "<|im_start|>role\ncontent<|im_end|>\n"... and a final "<|im_start|>assistant\n".  RC_UNSUPPORTED when the
 * vocabulary lacks the two markers, RC_INVALID for a role that is empty or has line ends or any of <>|, or a content
 * that holds a marker.  Encode the text with parse_special. */
struct chat_message {
  const char *role;
  const char *content;
  size_t content_len; /* it may hold NULs */
};
enum rc tokenizer_chat_text(const struct tokenizer *t, const struct chat_message *messages, size_t count,
                            struct buf *out, struct err *err);

#endif
