/* What every SQL statement of a process costs, in instructions of SQLite's virtual machine: for test_statement_cost.py,
 * which has it loaded before libsqlite3 (LD_PRELOAD).  Instructions are counted by SQLite itself, so load changes
 * nothing.
 *
 * At exit a line "instructions TAB text" for each statement goes to the file that STATEMENT_COST names.  Any thread. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATEMENTS_MAX = 2000 };

static struct {
  char *text;
  long long instructions;
} statements[STATEMENTS_MAX];
static int count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void note(const char *text, int instructions) {
  int i = 0;
  pthread_mutex_lock(&mutex);
  while (i < count && strcmp(statements[i].text, text) != 0) i++;
  if (i == count && count < STATEMENTS_MAX) statements[count++].text = strdup(text);
  if (i < count) statements[i].instructions += instructions;
  pthread_mutex_unlock(&mutex);
}

int sqlite3_step(sqlite3_stmt *statement) {
  int (*step)(sqlite3_stmt *) = NULL;
  *(void **)&step = dlsym(RTLD_NEXT, "sqlite3_step");
  const int rc = step(statement);
  const char *text = sqlite3_sql(statement);
  if (text) note(text, sqlite3_stmt_status(statement, SQLITE_STMTSTATUS_VM_STEP, 1));
  return rc;
}

__attribute__((destructor)) static void tell(void) {
  const char *path = getenv("STATEMENT_COST");
  FILE *file = path ? fopen(path, "w") : NULL;
  if (!file) return;
  for (int i = 0; i < count; i++) fprintf(file, "%lld\t%s\n", statements[i].instructions, statements[i].text);
  fclose(file);
}
