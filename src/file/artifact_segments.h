/* Compiled segments of an artifact, for the code that writes, reads and checks it. */
#pragma once

#include "file/artifact.h"

#define ARTIFACT_SEGMENTS_KEY "cleave.segments"

/* What a file may have of each, and how long names and texts may be in bytes. */
enum { SEGMENT_PARTS = 64, SEGMENT_NAME = 64, SEGMENT_TEXT = 4096 };

void segment_free(artifact_segment *s); /* what it owns */
bool segments_any(const artifact *a);   /* compiled ones */
bool fallbacks_any(const artifact *a);

/* Of plan i, as a part of artifact_check. */
clv_status segments_check(const artifact *a, uint32_t i);

/* The name of the entry that has a member; in the arena. */
clv_status segment_entry(uint32_t plan_number, uint32_t segment, const char *member, arena *a, const char **out);

/* segments_text.c: the text under ARTIFACT_SEGMENTS_KEY, and back. Reading also sees to it that every entry that is called
   like a member of a segment is one. */
clv_status segments_print(const artifact *a, strbuf *out);
clv_status segments_read(artifact *a);
