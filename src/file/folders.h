/* Folders of the user: where caches and state are, how they are made, and whether others can write them. */
#pragma once

#include <sys/stat.h>

#include "base/strbuf.h"

const char *environment_text(const char *name); /* NULL: not set, or empty */
/* $variable/cleave, else ~/below_home/cleave; nothing: there is no such place. */
void usual_place(const char *variable, const char *below_home, strbuf *b);
/* With all folders above it, each for its owner alone. CLV_E_IO. */
clv_status folder_make(const char *path);
const char *distrust(const struct stat *info); /* NULL: it is ours, and nobody else may write it; else why not */
/* CLV_E_IO: it is not there, belongs to another user, or others can write it. */
clv_status folder_check(const char *path);
/* What is kept for good, and is no cache: $XDG_STATE_HOME/cleave, else ~/.local/state/cleave, as safe as a cache is. The
   caller frees. */
clv_status state_folder(bool make, char **out); /* CLV_E_NOT_FOUND, CLV_E_IO */
