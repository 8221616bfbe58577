/* The headers that every cmocka program includes first, in the order that cmocka requires. */
#ifndef LEASEHOLD_TESTS_UNIT_BASE_CM_H
#define LEASEHOLD_TESTS_UNIT_BASE_CM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
