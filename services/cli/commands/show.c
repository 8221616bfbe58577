/* Formats what people read. */
#include "services/cli/commands/show.h"

#include <math.h>
#include <string.h>

#include "common/base/utf8.h"

const char *show_word(const struct json *v, const char *path, const char *otherwise) {
  const char *word = json_word(json_find(v, path));
  return word ? word : otherwise;
}

struct figure_text show_figure(double value, int decimals) {
  struct figure_text t = {"-"};
  if (!isnan(value)) snprintf(t.text, sizeof t.text, "%.*f", decimals, value);
  return t;
}

struct figure_text show_duration(double ms) {
  struct figure_text t = {"-"};
  const double s = ms / 1000;
  if (isnan(ms)) return t;
  if (s < 1)
    snprintf(t.text, sizeof t.text, "%.0f ms", ms);
  else if (s < 60)
    snprintf(t.text, sizeof t.text, "%.1f s", s);
  else if (s < 3600)
    snprintf(t.text, sizeof t.text, "%.0f min %.0f s", floor(s / 60), floor(fmod(s, 60)));
  else
    snprintf(t.text, sizeof t.text, "%.0f h %.0f min", floor(s / 3600), floor(fmod(s, 3600) / 60));
  return t;
}

/* Does the character move the cursor, ring, or turn text around? */
static bool steers(const char *text, int bytes) {
  const unsigned char *s = (const unsigned char *)text;
  if (bytes == 1) return s[0] < 0x20 || s[0] == 0x7F;
  if (bytes == 2) return s[0] == 0xC2 && s[1] < 0xA0; /* U+0080 to U+009F */
  if (bytes != 3 || s[0] != 0xE2) return false;
  return (s[1] == 0x80 &&
          ((s[2] >= 0xA8 && s[2] <= 0xAE) || s[2] == 0x8E || s[2] == 0x8F)) || /* U+2028 to U+202E, marks */
         (s[1] == 0x81 && s[2] >= 0xA6 && s[2] <= 0xA9);                       /* U+2066 to U+2069 */
}

void show_text(FILE *out, const char *text, size_t len) {
  for (size_t at = 0; at < len;) {
    const int bytes = utf8_length(text + at, len - at);
    if (bytes > 0 && !steers(text + at, bytes)) {
      fwrite(text + at, 1, (size_t)bytes, out);
      at += (size_t)bytes;
    } else if (text[at] == '\n') {
      fputs("\\n", out);
      at++;
    } else {
      for (int i = 0; i < (bytes > 0 ? bytes : 1); i++) fprintf(out, "\\x%02x", (unsigned char)text[at++]);
    }
  }
}

bool show_reward_server(struct buf *out, const struct json *server) {
  const char *error = show_word(server, "last_error", NULL);
  const double waiting = json_find_number(server, "waiting");
  if (!error || !(waiting > 0)) return false;
  buf_printf(out, "%.0f sample%s for the reward server %s, whose last request failed: %s", waiting,
             waiting == 1 ? " waits" : "s wait", show_word(server, "url", ""), error);
  return true;
}

void show_bar(FILE *out, double share, int width) {
  const int full = isnan(share) ? 0 : (int)(fmin(fmax(share, 0), 1) * width + 0.5);
  for (int i = 0; i < width; i++) fputc(i < full ? '#' : '.', out);
}
