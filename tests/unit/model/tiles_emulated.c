/* Holds the emulated tiles of each thread, and the switch that makes the emulated instruction add in another order. */
#include "tests/unit/model/tiles_emulated.h"

_Thread_local struct tiles_emulated tiles;
bool tiles_swap_chains;
