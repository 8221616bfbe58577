/* Curves for the trackers that people already use, written while runs go on: for every run a folder with metrics.jsonl,
 * a TensorBoard event file and run.json, and fragments for Trackio's inbox.
 *
 *   round done, in the ledger --> a look, 4 times a second: track_entries.h --> jsonl.h, tensorboard.h, trackio.h
 *
 * One thread of its own reads the ledger's snapshots and writes files; no step, command or request waits for it.  What
 * a crash, a full disk or a coordinator that was started without trackers has left out is written later, once: how far
 * a file has come stands in the file.  Runs from before the folder was named are written too, but for statistics of
 * samples whose rows were dropped (keep_rounds).
 *
 * main starts it after the core and stops it, which looks once more, before the core is destroyed. */
#ifndef LEASEHOLD_COORDINATOR_TRACKERS_TRACKERS_H
#define LEASEHOLD_COORDINATOR_TRACKERS_TRACKERS_H

#include "services/coordinator/store/readers.h"

struct trackers_options {
  const char *folder;  /* "": nothing is written */
  const char *trackio; /* Trackio's folder; "": no fragments */
  const char *names;   /* "trl" | "verl" */
};
struct trackers;
/* *out is NULL when nothing is to be written.  Creates the folder. */
enum rc trackers_start(struct trackers **out, struct readers *readers, const struct trackers_options *options,
                       struct err *err);
void trackers_stop(struct trackers *t); /* NULL is fine */

#endif
