/* leasehold, the command line: finds the command that the words name, reads its flags, and runs it.
 *
 * Everything that it does is a call of the coordinator's API that anybody can make; -v prints each as a curl command.
 * It keeps nothing: what it shows is in the ledger. */
#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "services/cli/commands/doctor.h"
#include "services/cli/commands/look.h"
#include "services/cli/commands/run.h"
#include "services/cli/commands/watch.h"

enum { ARGUMENTS_MAX = 256, NAME_WORDS_MAX = 3, COMMAND_FLAGS_MAX = 8 };

struct command {
  const char *name[NAME_WORDS_MAX];     /* "run", "start", NULL */
  int words_min, words_max;             /* behind its name */
  const char *flags[COMMAND_FLAGS_MAX]; /* that it reads, besides those of every command */
  const char *usage, *help;
  enum rc (*run)(struct session *s, int *status, struct err *err);
};

static const struct command commands[] = {
    {{"run", "start"},
     1,
     1,
     {"watch", "json", "timeout-s"},
     "run start FILE [--watch [--timeout-s N]]",
     "Start a run from its configuration, a JSON file.",
     run_start},
    {{"run", "list"}, 0, 0, {"json"}, "run list", "List the runs, the newest first.", run_list},
    {{"run", "show"}, 1, 1, {"json"}, "run show RUN", "Show how a run stands.", run_show},
    {{"run", "watch"},
     1,
     1,
     {"json", "timeout-s"},
     "run watch RUN [--timeout-s N]",
     "Follow a run to its end, round by round.",
     run_watch},
    {{"run", "compare"},
     2,
     2,
     {"json", "set", "b-set"},
     "run compare A B [--set NAME [--b-set NAME]]",
     "Is B's evaluation better than A's?  r1.10 is round 10's, r1 the newest.",
     run_compare},
    {{"run", "pause"}, 1, 1, {"json"}, "run pause RUN", "Grant no more leases.", run_pause},
    {{"run", "resume"}, 1, 1, {"json"}, "run resume RUN", "Go on with a paused run.", run_resume},
    {{"run", "stop"}, 1, 1, {"json"}, "run stop RUN", "End a run.", run_stop},
    {{"rollouts"},
     1,
     1,
     {"json", "round", "limit"},
     "rollouts RUN [--round N] [--limit N]",
     "Show what was sampled in a round.",
     rollouts_show},
    {{"timeline"},
     1,
     1,
     {"json", "round", "limit"},
     "timeline RUN [--round N] [--limit N]",
     "Show who waited for whom, round by round.",
     timeline_show},
    {{"workers"},
     0,
     0,
     {"json", "watch", "timeout-s"},
     "workers [--watch [--timeout-s N]]",
     "List the live workers; with --watch every second, on a terminal as one table that is redrawn.",
     workers_show},
    {{"doctor"},
     0,
     1,
     {"model", "data-dir", "coordinator-flags", "trainer-flags", "server-flags", "servers", "new-tokens", "measure-s"},
     "doctor [FILE] [--model FOLDER]",
     "Check a set-up, and a run's configuration, before hours are spent on it; with --model before any service runs.",
     doctor_run},
};
static const size_t command_count = sizeof commands / sizeof commands[0];

struct arguments {
  char *flags[ARGUMENTS_MAX]; /* flags[0]: the program */
  bool is_value[ARGUMENTS_MAX]; /* of the flag before it; it may begin as flags do */
  int flag_count;
  const char *words[ARGUMENTS_MAX];
  int word_count;
};

static const struct option *find(const struct option *options, size_t count, const char *name) {
  const size_t len = strcspn(name, "=");
  for (size_t i = 0; i < count; i++)
    if (strlen(options[i].name) == len && memcmp(options[i].name, name, len) == 0) return &options[i];
  return NULL;
}

/* Flags may stand before, between and behind the words. */
static enum rc arguments_split(struct arguments *a, const struct option *options, size_t count, int argc, char **argv,
                               struct err *err) {
  static char verbose[] = "--verbose";
  if (argc > ARGUMENTS_MAX)
    return err_set(err, RC_INVALID, NULL, "expected at most %d arguments, got %d", ARGUMENTS_MAX, argc);
  a->flags[a->flag_count++] = argv[0];
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "-v") == 0) {
      a->flags[a->flag_count++] = verbose;
    } else if (argv[i][0] == '-' && argv[i][1]) {
      const struct option *o = find(options, count, argv[i] + (argv[i][1] == '-' ? 2 : 1));
      a->flags[a->flag_count++] = argv[i];
      bool word;
      if (!o || strchr(argv[i], '=') || i + 1 == argc) continue;
      if (o->type == OPTION_BOOL && !options_bool(&word, argv[i + 1])) continue;
      a->is_value[a->flag_count] = true;
      a->flags[a->flag_count++] = argv[++i];
    } else {
      a->words[a->word_count++] = argv[i];
    }
  }
  return RC_OK;
}

static void print_help(const struct option *options, size_t count) {
  options_print_help("leasehold COMMAND", "Talks to a coordinator.  -v is --verbose; - as a file is standard input.",
                     options, count);
  printf("\nCommands:\n");
  for (size_t i = 0; i < command_count; i++) printf("  %s\n      %s\n", commands[i].usage, commands[i].help);
  printf(
      "\nExit status: 0 done, or the run completed; 1 refused, the run ended otherwise, doctor: a line fails, or the "
      "answer could not be\n"
      "written; 2 wrong usage; 3 no coordinator answers; 4 the run is paused, or --timeout-s is over.\n");
}

static enum rc command_find(const struct command **out, const struct arguments *a, struct session *s, struct err *err) {
  for (size_t i = 0; i < command_count; i++) {
    const struct command *c = &commands[i];
    int words = 0;
    while (c->name[words] && words < a->word_count && strcmp(c->name[words], a->words[words]) == 0) words++;
    if (c->name[words]) continue;
    s->words = a->words + words;
    s->word_count = a->word_count - words;
    if (s->word_count < c->words_min || s->word_count > c->words_max)
      return err_set(err, RC_INVALID, NULL, "usage: leasehold %s", c->usage);
    *out = c;
    return RC_OK;
  }
  if (a->word_count == 0) return err_set(err, RC_INVALID, NULL, "expected a command; --help lists them");
  return err_set(err, RC_INVALID, NULL, "there is no command \"%s%s%s\"; --help lists them", a->words[0],
                 a->word_count > 1 ? " " : "", a->word_count > 1 ? a->words[1] : "");
}

/* A flag that the command does nothing with is a mistake of the user's, like an unknown one. */
static enum rc flags_check(const struct command *c, const struct arguments *a, struct err *err) {
  static const char *const all[] = {"coordinator", "auth-token",    "tls-cert", "tls-key",
                                    "tls-ca",      "tls-peer-name", "verbose"};
  for (int i = 1; i < a->flag_count; i++) {
    const char *name = a->flags[i] + 2;
    const size_t len = strcspn(name, "=");
    bool known = a->is_value[i] || strncmp(a->flags[i], "--", 2) != 0;
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
      known |= strlen(all[k]) == len && strncmp(all[k], name, len) == 0;
    for (int k = 0; k < COMMAND_FLAGS_MAX && c->flags[k]; k++)
      known |= strlen(c->flags[k]) == len && strncmp(c->flags[k], name, len) == 0;
    if (!known)
      return err_set(err, RC_INVALID, NULL, "%s does nothing here; usage: leasehold %s", a->flags[i], c->usage);
  }
  return RC_OK;
}

static bool flag_given(const struct arguments *a, const char *name) {
  const size_t len = strlen(name);
  for (int i = 1; i < a->flag_count; i++) {
    const char *flag = a->flags[i];
    if (!a->is_value[i] && strncmp(flag, "--", 2) == 0 && strncmp(flag + 2, name, len) == 0 &&
        (flag[2 + len] == '\0' || flag[2 + len] == '='))
      return true;
  }
  return false;
}

int main(int argc, char **argv) {
  struct session s = {0};
  struct err err = {0};
  struct arguments a = {0};
  enum options_action action;
  const struct command *command = NULL;
  const struct option options[] = {
      {"coordinator", OPTION_STRING, &s.coordinator, "http://127.0.0.1:8000", 0, 0, "the coordinator's address"},
      {"auth-token", OPTION_STRING, &s.token, "", 0, 0, "bearer token to show"},
      TLS_CLIENT_OPTIONS(&s.tls),
      {"verbose", OPTION_BOOL, &s.verbose, "false", 0, 0, "print each call as a curl command, on standard error"},
      {"json", OPTION_BOOL, &s.json, "false", 0, 0, "print the coordinator's answer as it came"},
      {"watch", OPTION_BOOL, &s.watch, "false", 0, 0, "run start: follow the run; workers: look every second"},
      {"round", OPTION_INT, &s.round, "-1", -1, 1e6, "rollouts, timeline: of this round; -1: the newest"},
      {"limit", OPTION_INT, &s.limit, "8", 1, 4096, "rollouts: so many; timeline: so many rounds"},
      {"set", OPTION_STRING, &s.set, "", 0, 0, "run compare: the evaluation set; A's first where it is left out"},
      {"b-set", OPTION_STRING, &s.b_set, "", 0, 0, "run compare: B's, where it has another name"},
      {"timeout-s", OPTION_INT, &s.timeout_s, "0", 0, 1e9,
       "with --watch, and run watch: give up after this long; 0: never"},
      {"model", OPTION_STRING, &s.model, "", 0, 0,
       "doctor: the model's folder, to check this machine before any service runs: the services' programs foresee "
       "what they would need; only by this flag, because LEASEHOLD_MODEL is the services' own"},
      {"data-dir", OPTION_STRING, &s.data_dir, ".", 0, 0, "doctor --model: the coordinator's folder of datasets"},
      {"coordinator-flags", OPTION_STRING, &s.coordinator_flags, "", 0, 0,
       "doctor --model: the coordinator's other flags, such as \"--db /srv/runs.db\""},
      {"trainer-flags", OPTION_STRING, &s.trainer_flags, "", 0, 0,
       "doctor --model: the trainer-server's flags, such as \"--threads 4 --lean\""},
      {"server-flags", OPTION_STRING, &s.server_flags, "", 0, 0,
       "doctor --model: the generation-servers' flags, such as \"--slots 64\""},
      {"servers", OPTION_INT, &s.servers, "1", 1, LIMIT_WORKERS,
       "doctor --model: how many generation-servers there will be"},
      {"new-tokens", OPTION_INT, &s.new_tokens, "0", 0, LIMIT_NEW_TOKENS,
       "doctor --model: the mean length of samples in tokens; 0: the longest that the run allows"},
      {"measure-s", OPTION_INT, &s.measure_s, "3", 0, 600,
       "doctor --model: how long trainer and server compute, each, to be measured; 0: not at all"},
  };
  const size_t count = sizeof options / sizeof options[0];
  log_init("leasehold", LOG_WARN);
  enum rc rc = arguments_split(&a, options, count, argc, argv, &err);
  if (rc == RC_OK) rc = options_parse(&action, options, count, a.flag_count, a.flags, &err);
  if (rc == RC_OK && action != OPTIONS_RUN) {
    if (action == OPTIONS_HELP)
      print_help(options, count);
    else
      printf("leasehold %s\n", leasehold_version);
    return EXIT_DONE;
  }
  if (rc == RC_OK) rc = command_find(&command, &a, &s, &err);
  if (rc == RC_OK) rc = flags_check(command, &a, &err);
  if (rc != RC_OK) {
    fprintf(stderr, "leasehold: %s\n", err.message);
    return EXIT_USAGE;
  }
  if (!flag_given(&a, "model")) s.model = ""; /* a shell that services are started from has LEASEHOLD_MODEL set */
  int status = EXIT_DONE;
  rc = session_open(&s, &err);
  if (rc == RC_OK) rc = command->run(&s, &status, &err);
  session_close(&s);
  if ((fflush(stdout) != 0 || ferror(stdout)) && rc == RC_OK)
    rc = err_set(&err, RC_IO, NULL, "not all of the answer could be written to standard output; its disk may be "
                                    "full");
  if (rc == RC_OK) return status;
  const bool named = !err.field[0] || strstr(err.message, err.field);
  fprintf(stderr, "leasehold: %s%s%s\n", named ? "" : err.field, named ? "" : ": ", err.message);
  return rc == RC_UNAVAILABLE || rc == RC_TIMEOUT ? EXIT_UNREACHABLE : EXIT_REFUSED;
}
