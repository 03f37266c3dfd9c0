/* The numbers of a block in files of profiles: one list for reading and writing. */
#pragma once

#include <stddef.h>

#include "pipe/profile.h"

#define PROFILE_FORMAT "cleave-profile"
#define PROFILE_VERSION 1

typedef struct profile_number {
	const char *key;
	size_t at; /* a double of block_profile */
} profile_number;

#define PROFILE_NUMBER_COUNT 16
extern const profile_number profile_numbers[PROFILE_NUMBER_COUNT];
