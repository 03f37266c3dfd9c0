/* Sessions of training: who trains which suffix, how far it is, and the file that has it.
 *
 * A session is on disk, in one file of the folder that the server was given (docs/training.md, "Files of sessions"). In memory is
 * what the file says, and a trainer that was made from it: that may be thrown away at any time, and is, where a step could not be
 * written, or where trainers take more memory than they may; then those go that were not used for longest. A worker takes a session, works out what it will be, writes that, and then puts it in its place. */
#ifndef SERVE_SESSION_H
#define SERVE_SESSION_H

#include "base/digest.h"
#include "file/safetensors.h"
#include "file/session_name.h"
#include "serve/serve.h"

enum { SESSION_MEMBERS_MOST = 64, OWNER_TEXT = 65 };

/* All of a server. */
typedef struct sessions sessions;

/* One who sends steps. */
typedef struct session_member {
	char name[SESSION_NAME_MOST + 1];
	char owner[OWNER_TEXT]; /* SHA-256 of the token; "": the server has none */
	uint64_t last;          /* its last step; 0: none yet */
	digest body;            /* of what it sent for that */
	uint64_t tied;          /* the last step whose tied parameters were stepped */
} session_member;

typedef struct session_facts {
	bool shared, has_seed;
	uint32_t accumulate;
	uint64_t seed;
	uint64_t steps; /* of the optimizer */
	uint32_t nmembers;
	session_member members[SESSION_MEMBERS_MOST];
} session_facts;

typedef struct session {
	char id[SESSION_NAME_MOST + 1];
	char *model;
	char owner[OWNER_TEXT]; /* who made it */
	session_facts facts;
	bool busy;            /* a worker has it */
	int64_t used;         /* nanoseconds of the clock */
	size_t bytes;         /* of its file */
	clv_trainer *trainer; /* as the file has it; NULL: none is in memory */
	served *of;           /* the model that it was made of */
	_Atomic bool held;    /* it has a trainer */
	bool stepping;        /* which runs a step that may be ended */
} session;

clv_status sessions_open(server *s); /* takes up those that the folder has */
void sessions_close(server *s);
/* Sessions; and of those, how many have a trainer in memory. */
uint32_t sessions_count(server *s, uint32_t *held);
/* Ends the steps that run, and lets none begin any more. */
void sessions_stop(server *s);
/* Ends those that nobody has used for long. At the desk. */
void sessions_expire(server *s);
bool sessions_any_old(server *s);

/* The session for this worker alone. What may not be is answered: there is none, another model's, another token's, or another
   worker has it. */
session *session_take(exchange *x, const char *id);
void session_give_back(session *s, exchange *x);
/* The same; *made: there was none, and this one is new, with these facts. */
session *session_open(exchange *x, const char *id, const session_facts *facts, bool *made);
void session_drop(server *sv, session *s); /* ends it, with its file; it was taken */
/* Calls `look` with the facts of a session, which no worker changes meanwhile. CLV_E_NOT_FOUND */
clv_status session_look(exchange *x, const char *id, void (*look)(void *ctx, const session *s), void *ctx);

/* ---- its file ------------------------------------------------------------------------------------------------------------ */

typedef struct session_file {
	mapping map;
	st_file *parts;
	struct json_t *said;
} session_file;

clv_status session_file_open(exchange *x, const session *s, session_file *out);
void session_file_close(session_file *f);
/* "trainer", "answer.3", "body.3": bytes that are what was written. CLV_E_NOT_FOUND, CLV_E_PARSE. */
clv_status session_part(const session_file *f, const char *name, const st_entry **out);

typedef struct session_bytes {
	char name[32];
	const void *at;
	size_t n;
} session_bytes;

/* Writes the session as it will be, whole or not at all, to the disk, and then it is that. A failure is answered: the session is what
   its file says. */
clv_status session_write(exchange *x, session *s, const session_facts *next, const session_bytes *parts, uint32_t n);
/* The trainer as the file has it; made where there is none. */
clv_status session_trainer(exchange *x, session *s, clv_trainer **out);
/* Around what runs on the trainer. False: the server stops, and that is answered. */
bool session_begin(exchange *x, session *s);
void session_end(exchange *x, session *s);
clv_status session_rewind(exchange *x, session *s); /* the trainer was changed for something that is not kept */
void session_forget(session *s);                    /* the same, without making one */

/* ---- requests (train.c), on a worker --------------------------------------------------------------------------------------- */

void train_step(exchange *x);
void train_open(exchange *x);
void train_about(exchange *x);
void train_end(exchange *x);
void train_state(exchange *x);
void train_tied(exchange *x);

#endif
