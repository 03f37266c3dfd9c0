/* Names of training sessions and of their members. They go into paths, heads of requests and names of files. */
#ifndef FILE_SESSION_NAME_H
#define FILE_SESSION_NAME_H

#include "base/status.h"

enum { SESSION_NAME_MOST = 64 };

bool session_is_name(const char *s);                          /* letters, digits, - (but not first) and _ */
clv_status session_name_new(char out[SESSION_NAME_MOST + 1]); /* 128 bits that nobody guesses */

#endif
