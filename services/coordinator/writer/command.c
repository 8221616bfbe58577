/* Makes and frees commands; core.c carries them out. */
#include "services/coordinator/writer/command.h"

#include <stdlib.h>

struct command *command_new(command_execute execute, size_t message_bytes) {
  struct command *cmd = calloc(1, sizeof *cmd);
  if (!cmd) return NULL;
  cmd->execute = execute;
  log_context_save(&cmd->log);
  cmd->message = arena_alloc(&cmd->arena, 1, message_bytes ? message_bytes : 1);
  if (!cmd->message) {
    free(cmd);
    return NULL;
  }
  return cmd;
}

struct command *command_for(struct http_request *r, command_execute execute, size_t message_bytes) {
  struct command *cmd = command_new(execute, message_bytes);
  if (cmd) cmd->id = arena_strdup(&cmd->arena, http_param(r, "id"));
  if (!cmd || cmd->id) return cmd;
  command_free(cmd);
  return NULL;
}

void command_free(struct command *cmd) {
  if (!cmd) return;
  buf_free(&cmd->body);
  buf_free(&cmd->taken);
  arena_free(&cmd->arena);
  free(cmd);
}
