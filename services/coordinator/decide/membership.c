/* Finds the members of a round's next optimizer step among its groups. */
#include "services/coordinator/decide/membership.h"

void membership_find(struct step_members *out, const enum group_standing *groups, int n, int groups_per_step) {
  int open = 0;
  *out = (struct step_members){0};
  while (out->end < n && open + out->sealed + out->submitted < groups_per_step) {
    const enum group_standing standing = groups[out->end++];
    open += standing == STANDING_OPEN;
    out->sealed += standing == STANDING_SEALED;
    out->submitted += standing == STANDING_SUBMITTED;
  }
  out->full = out->sealed + out->submitted == groups_per_step;
}
