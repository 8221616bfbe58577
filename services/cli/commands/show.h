/* Showing answers: words, numbers for people, text that cannot steer a terminal, bars. */
#ifndef LEASEHOLD_CLI_COMMANDS_SHOW_H
#define LEASEHOLD_CLI_COMMANDS_SHOW_H

#include <stdbool.h>
#include <stdio.h>

#include "common/base/buf.h"
#include "common/json/json.h"

const char *show_word(const struct json *v, const char *path, const char *otherwise); /* valid while v lives */
struct figure_text {
  char text[32];
};
struct figure_text show_figure(double value, int decimals); /* "-" for NaN */
struct figure_text show_duration(double ms);                /* "350 ms", "12.3 s", "4 min 10 s", "2 h 5 min" */
/* What a model has written, or a peer has called itself: control characters, and bytes that are no UTF-8, are shown and
 * not obeyed. */
void show_text(FILE *out, const char *text, size_t len);
/* For an entry of a run's reward_servers whose last request failed while samples wait for it, puts "12 samples wait for
 * the reward server http://..., whose last request failed: ...".  False, and nothing is put: the server is well. */
bool show_reward_server(struct buf *out, const struct json *server);
/* width columns, `share` of them filled. */
void show_bar(FILE *out, double share, int width);

#endif
