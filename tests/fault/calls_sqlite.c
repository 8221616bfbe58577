/* Steps of SQLite's statements.  Only the coordinator has any; SQLite's own calls on files come by calls_files.c. */
#include <sqlite3.h>
#include <strings.h>

#include "tests/fault/shim.h"

static void *real_step, *real_readonly, *real_sql, *real_handle, *real_state, *real_exec;

#define SQLITE(slot, name) ((__typeof__(&name))shim_real(&slot, #name))

int sqlite3_step(sqlite3_stmt *statement) {
  const char *text = SQLITE(real_sql, sqlite3_sql)(statement);
  const bool commits = text && strncasecmp(text, "COMMIT", 6) == 0,
             readonly = SQLITE(real_readonly, sqlite3_stmt_readonly)(statement);
  sqlite3 *db = SQLITE(real_handle, sqlite3_db_handle)(statement);
  /* Readers have transactions too, which commit nothing. */
  const bool stores = commits && SQLITE(real_state, sqlite3_txn_state)(db, NULL) == SQLITE_TXN_WRITE;
  int error = 0;
  const enum shim_act act = shim_enter(stores ? CALL_COMMIT : readonly ? CALL_QUERY : CALL_CHANGE, &error);
  if (act == ACT_FAIL) return error;
  const int code = SQLITE(real_step, sqlite3_step)(statement);
  if (stores && code == SQLITE_DONE) {
    disk_mark("commit");
    shim_committed();
  }
  shim_leave(act);
  return code;
}

/* SQLite's own asks the statement, not the step, how it went, and would take a refused step for one that was done. */
int sqlite3_exec(sqlite3 *db, const char *sql, int (*row)(void *, int, char **, char **), void *context,
                 char **message) {
  int code = SQLITE_OK;
  if (row || message) return SQLITE(real_exec, sqlite3_exec)(db, sql, row, context, message);
  while (code == SQLITE_OK && sql[0]) {
    sqlite3_stmt *statement = NULL;
    code = sqlite3_prepare_v2(db, sql, -1, &statement, &sql);
    if (code != SQLITE_OK || !statement) continue; /* NULL: blanks or a comment */
    do
      code = sqlite3_step(statement);
    while (code == SQLITE_ROW);
    const int ended = sqlite3_finalize(statement);
    code = code == SQLITE_DONE ? ended : code;
  }
  return code;
}
