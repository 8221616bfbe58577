/* The names of a round's figures in trackers: a table of TRL's names and verl's, by which people's dashboards look for
 * curves. A figure for which they have no name is called leasehold/ and its name here.
 *
 * Pure data.  `figure` is a path into a round as views/round_view.h writes it ("lag.mean"), or into its samples'
 * statistics ("samples.reward_std", sample_figures.h); README.md beside this file shows the table. */
#ifndef LEASEHOLD_COORDINATOR_TRACKERS_TRACK_NAMES_H
#define LEASEHOLD_COORDINATOR_TRACKERS_TRACK_NAMES_H

#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/rc.h"

enum track_naming { TRACK_TRL, TRACK_VERL };
/* "trl" | "verl" */
enum rc track_naming_parse(enum track_naming *out, const char *name, struct err *err);

struct track_name {
  const char *figure;
  const char *trl, *verl; /* NULL: they have none */
  double scale;           /* from the figure's unit to theirs: 0.001 from milliseconds to seconds */
};
extern const struct track_name track_names[];
extern const int track_name_count;

/* Appends what the figure is called. */
void track_name_write(struct buf *out, const struct track_name *n, enum track_naming naming);

/* Appends the name of a term's mean over a round's samples, or of their standard deviation.  verl has none. */
void track_term_name(struct buf *out, const char *term, bool std, enum track_naming naming);

/* Names of an evaluation's figures.  set: NULL where a run has one set only (TRL's way; verl's always has the name). */
struct track_evaluation {
  const char *set, *set_always;
  int64_t samples_per_problem;
};
enum track_evaluation_figure {
  TRACK_EVAL_REWARD,
  TRACK_EVAL_PASS,
  TRACK_EVAL_MAJORITY,
  TRACK_EVAL_LENGTH,
  TRACK_EVAL_FORMED
};
/* k: of TRACK_EVAL_PASS. */
void track_evaluation_name(struct buf *out, const struct track_evaluation *e, enum track_evaluation_figure figure,
                           int64_t k, enum track_naming naming);
/* Is this the name of an evaluation's figure? */
bool track_name_evaluates(const char *name, size_t len);

#endif
