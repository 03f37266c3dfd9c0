/* Training over the network: a client sends a boundary and its targets, the suffix is stepped here, and loss and gradients go back
 * (docs/training.md). Each step has a number. What it changed, and its answer, are on disk before the answer leaves; a step that
 * comes again gets that answer, and changes nothing. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/member.h"
#include "file/tensors.h"
#include "file/training.h"
#include "runtime/trainer.h"
#include "serve/oip.h"
#include "serve/session.h"

/* ---- what a request says ---------------------------------------------------------------------------------------------------- */

static bool find_trained(exchange *x)
{
	if (answer_status(x, models_find(x->s, x->model, x->version, &x->served)) && x->served->kind != SERVES_TRAINING)
		answer_error(x, 400, "model '%s' does not train: SplitRuntime.save_trainer writes a file that does", x->model);
	return !x->out.status;
}

/* A number of the head; `otherwise` where it is not given, below 0: it has to be. */
static bool read_number(exchange *x, const char *field, int64_t otherwise, int64_t *out)
{
	const char *text = http_field_of(&x->head, field);
	*out = otherwise;
	if ((text && http_number(text, out)) || (!text && otherwise >= 0))
		return true;
	answer_error(x, 400, "the request needs the field %s with a number", field);
	return false;
}

static bool is_mine(exchange *x, const char *owner)
{
	if (strcmp(owner, x->owner) != 0)
		answer_error(x, 403, "the session, or its member, belongs to another token");
	return !x->out.status;
}

static bool is_named(exchange *x)
{
	if (!x->session || !session_is_name(x->session))
		answer_error(x, 400, "a session is named by 1 to %d letters, digits, - and _", SESSION_NAME_MOST);
	return !x->out.status && find_trained(x);
}

/* The session that the request names, for this worker alone; NULL is answered. */
static session *take(exchange *x)
{
	return is_named(x) ? session_take(x, x->session) : NULL;
}

/* A step, while it is worked on. */
typedef struct step {
	exchange *x;
	session *s;
	session_facts next; /* what the session will be */
	uint32_t member;
	uint64_t number;
	digest body;
	const uint8_t *at; /* the body: boundary, then targets */
	size_t n, boundary_n;
	clv_trainer *trainer;
	bool changed; /* the trainer is not what the file says */
	void *answer;
	size_t answer_n;
	void *state;
	size_t state_n;
} step;

static bool read_step(step *p)
{
	exchange *x = p->x;
	int64_t number, member, boundary;
	if (!read_number(x, "cleave-step", -1, &number) || !read_number(x, "cleave-member", 0, &member) ||
	    !read_number(x, "cleave-boundary-length", -1, &boundary))
		return false;
	p->at = body_at(&x->body);
	p->n = x->body.n;
	p->number = (uint64_t)number;
	p->boundary_n = (size_t)boundary;
	if (boundary > (int64_t)p->n || number < 1) {
		answer_error(x, 400, number < 1 ? "the first step has the number 1" : "the body ends before the boundary does");
		return false;
	}
	if (member >= p->s->facts.nmembers) {
		answer_error(x, 409, "the session has no member %lld: it has %u", (long long)member, p->s->facts.nmembers);
		return false;
	}
	size_t memory = json_memory_most(st_header_bytes(p->at, p->boundary_n)) +
	                json_memory_most(st_header_bytes(p->at + boundary, p->n - p->boundary_n));
	if (!answer_status(x, exchange_hold(x, memory)))
		return false;
	p->member = (uint32_t)member;
	p->body = digest_of_three(p->at, p->n, &boundary, sizeof boundary, NULL, 0);
	return is_mine(x, p->s->facts.members[member].owner);
}

/* ---- answers ------------------------------------------------------------------------------------------------------------------ */

static void answer_expected(exchange *x, uint64_t expected, const char *message)
{
	strbuf b = STRBUF_INIT;
	member_open(&b, NULL, '{');
	member_text(&b, "error", message);
	member_int(&b, "expected", (int64_t)expected);
	strbuf_putc(&b, '}');
	x->out.error = arena_str(&x->arena, message);
	answer_text(x, 409, "application/json", &b);
}

/* Takes the bytes. */
static void answer_bytes(exchange *x, void *at, size_t n)
{
	answer_empty(x, 200);
	if (answer_piece(&x->out, at, n, mem_free, at) != CLV_OK)
		answer_empty(x, 503);
	else
		x->out.type = ST_MEDIA_TYPE;
}

static void part_name(const char *what, uint32_t member, char out[32])
{
	snprintf(out, 32, "%s.%u", what, member);
}

/* A part of the file, as the answer. */
static clv_status answer_part(exchange *x, const session *s, const char *name)
{
	session_file f;
	const st_entry *e;
	void *copy = NULL;
	TRY(session_file_open(x, s, &f));
	clv_status st = session_part(&f, name, &e);
	if (st == CLV_OK && !(copy = mem_realloc(NULL, e->nbytes, 1)))
		st = fail_nomem();
	if (st == CLV_OK) {
		memcpy(copy, e->data, e->nbytes);
		answer_bytes(x, copy, e->nbytes);
	}
	session_file_close(&f);
	return st;
}

/* ---- whose turn it is ------------------------------------------------------------------------------------------------------------ */

/* True: the step is to be made. Otherwise there is an answer. */
static bool is_next(step *p)
{
	const session_facts *f = &p->s->facts;
	const session_member *m = &f->members[p->member];
	char message[160], name[32];
	if (p->number == m->last && digest_equal(p->body, m->body)) {
		part_name("answer", p->member, name);
		answer_status(p->x, answer_part(p->x, p->s, name));
	} else if (p->number == m->last) {
		snprintf(message, sizeof message, "step %llu was made with another body; the session expects step %llu",
		         (unsigned long long)m->last, (unsigned long long)m->last + 1);
		answer_expected(p->x, m->last + 1, message);
	} else if (p->number != m->last + 1) {
		snprintf(message, sizeof message, "step %llu is not next: the session expects step %llu",
		         (unsigned long long)p->number, (unsigned long long)m->last + 1);
		answer_expected(p->x, m->last + 1, message);
	} else if (f->shared && m->last > f->steps) {
		answer_error(p->x, 503, "step %llu waits for other members, whose step %llu has not come",
		             (unsigned long long)p->number, (unsigned long long)m->last);
		p->x->out.retry = 0; /* soon */
	}
	return !p->x->out.status;
}

/* ---- one run ---------------------------------------------------------------------------------------------------------------------- */

static clv_status room_for(void *ctx, size_t bytes)
{
	return ctx ? exchange_hold(ctx, bytes) : CLV_OK;
}

static clv_status read_target(exchange *x, const st_file *f, uint32_t i, clv_tensor **out)
{
	char name[32];
	part_name("targets", i, name);
	uint32_t k = st_find(f, name);
	if (k == NONE)
		return fail(CLV_E_INPUT, "the body has no tensor %s", name);
	const st_entry *e = st_at(f, k);
	if (e->ndim > RANK_MOST)
		return fail(CLV_E_INPUT, "%s has %u dimensions", name, e->ndim);
	TRY(room_for(x, e->nbytes));
	return entry_tensor(e, out);
}

static clv_status read_targets(exchange *x, const uint8_t *at, size_t n, clv_tensor **out, uint32_t count)
{
	st_file *f;
	clv_status st = CLV_OK;
	if (!n)
		return count ? fail(CLV_E_INPUT, "the body has no targets after the boundary") : CLV_OK;
	TRY_MORE(st_parse(at, n, &f), "the targets");
	if (st_count(f) != count)
		st = fail(CLV_E_INPUT, "the body has %u targets, the loss takes %u", st_count(f), count);
	for (uint32_t i = 0; st == CLV_OK && i < count; i++)
		st = read_target(x, f, i, &out[i]);
	st_free(f);
	return st;
}

/* x NULL: a body that was checked before. */
static clv_status run_body(clv_trainer *t, exchange *x, exchange *about, const uint8_t *at, size_t n, size_t boundary_n,
                           bool apply, clv_tensor **loss, clv_boundary **gradients)
{
	uint32_t count = clv_trainer_target_count(t);
	boundary_gate gate = {.room = room_for, .ctx = x};
	clv_boundary *b = NULL;
	clv_tensor **targets = mem_alloc((count + 1) * sizeof *targets);
	clv_status st = targets ? runtime_read_boundary(trainer_suffix(t), at, boundary_n, &gate, &b) : fail_nomem();
	if (gate.elsewhere)
		answer_error(about, 409, "%s", status_message());
	if (st == CLV_OK)
		st = read_targets(x, at + boundary_n, n - boundary_n, targets, count);
	const clv_tensor *const *given = (const clv_tensor *const *)targets;
	if (st == CLV_OK)
		st = apply ? clv_trainer_step(t, b, given, count, loss, gradients)
		           : clv_trainer_accumulate(t, b, given, count, loss, gradients);
	for (uint32_t i = 0; targets && i < count; i++)
		clv_tensor_free(targets[i]);
	mem_free(targets);
	clv_boundary_free(b);
	return st;
}

/* Runs the body and packs loss and gradients. Labels of values start with % or #, of parameters with @. */
static clv_status run_step(step *p, bool apply)
{
	clv_tensor *loss = NULL;
	clv_boundary *gradients = NULL;
	if (!session_begin(p->x, p->s))
		return CLV_E_CANCELLED;
	clv_status st = run_body(p->trainer, p->x, p->x, p->at, p->n, p->boundary_n, apply, &loss, &gradients);
	session_end(p->x, p->s);
	TRY(st);
	p->changed = true;
	st = boundary_add(gradients, "loss", loss);
	if (st == CLV_OK)
		st = clv_boundary_pack(gradients, NULL, &p->answer, &p->answer_n);
	clv_boundary_free(gradients);
	return st;
}

/* ---- sessions of one client ----------------------------------------------------------------------------------------------------------- */

static void note_step(step *p)
{
	session_member *m = &p->next.members[p->member];
	m->last = p->number;
	m->body = p->body;
}

static clv_status make_own(step *p)
{
	bool apply = p->number % p->next.accumulate == 0;
	TRY(run_step(p, apply));
	TRY(clv_trainer_state(p->trainer, &p->state, &p->state_n));
	p->next.steps += apply;
	note_step(p);
	session_bytes parts[] = {{"trainer", p->state, p->state_n}, {"answer.0", p->answer, p->answer_n}};
	return session_write(p->x, p->s, &p->next, parts, 2);
}

/* ---- sessions of several --------------------------------------------------------------------------------------------------------------- */

typedef VEC(session_bytes) part_list;

static clv_status add_part(part_list *l, const char *name, const void *at, size_t n)
{
	session_bytes b = {.at = at, .n = n};
	snprintf(b.name, sizeof b.name, "%s", name);
	return vec_push(l, b);
}

/* A part that stays as it is. */
static clv_status keep_part(part_list *l, const session_file *f, const char *name)
{
	const st_entry *e;
	TRY(session_part(f, name, &e));
	return add_part(l, name, e->data, e->nbytes);
}

/* All but what member `but` sent. whole: also what the others sent in this round. */
static clv_status keep_parts(part_list *l, const session_file *f, const session_facts *facts, uint32_t but, bool whole)
{
	char name[32];
	for (uint32_t i = 0; i < facts->nmembers; i++) {
		if (i == but || !facts->members[i].last)
			continue;
		part_name("answer", i, name);
		TRY(keep_part(l, f, name));
		part_name("body", i, name);
		if (whole && facts->shared && facts->members[i].last > facts->steps)
			TRY(keep_part(l, f, name));
	}
	return CLV_OK;
}

/* What a member sent: how long the boundary is, then the body. */
static clv_status put_body(const step *p, strbuf *b)
{
	uint64_t n = p->boundary_n;
	strbuf_add(b, (const char *)&n, sizeof n);
	strbuf_add(b, (const char *)p->at, p->n);
	return b->failed ? fail_nomem() : CLV_OK;
}

static clv_status replay(step *p, const session_file *f, uint32_t member)
{
	char name[32];
	const st_entry *e;
	uint64_t boundary;
	if (member == p->member)
		return run_body(p->trainer, NULL, p->x, p->at, p->n, p->boundary_n, false, NULL, NULL);
	part_name("body", member, name);
	TRY(session_part(f, name, &e));
	const uint8_t *at = e->data;
	if (e->nbytes < sizeof boundary)
		return fail(CLV_E_IO, "the file of the session is damaged");
	memcpy(&boundary, at, sizeof boundary);
	if (boundary > e->nbytes - sizeof boundary)
		return fail(CLV_E_IO, "the file of the session is damaged");
	return run_body(p->trainer, NULL, p->x, at + sizeof boundary, e->nbytes - sizeof boundary, boundary, false, NULL,
	                NULL);
}

static clv_status replay_all(step *p, const session_file *f)
{
	for (uint32_t i = 0; i < p->next.nmembers; i++)
		TRY_MORE(replay(p, f, i), "the step of member %u", i);
	return CLV_OK;
}

/* All that was sent, in the order of the members, from where the round began: whoever was first. */
static clv_status end_round(step *p, const session_file *f)
{
	if (!session_begin(p->x, p->s))
		return CLV_E_CANCELLED;
	clv_status st = replay_all(p, f);
	session_end(p->x, p->s);
	TRY(st);
	TRY(clv_trainer_apply(p->trainer));
	TRY(clv_trainer_state(p->trainer, &p->state, &p->state_n));
	p->next.steps++;
	return CLV_OK;
}

static bool is_complete(const session_facts *f)
{
	uint32_t there = 0;
	for (uint32_t i = 0; i < f->nmembers; i++)
		there += f->members[i].last > f->steps;
	return there == f->accumulate;
}

static clv_status collect(step *p, const session_file *f, strbuf *body, part_list *l)
{
	char name[32];
	bool complete = is_complete(&p->next);
	TRY(keep_parts(l, f, &p->s->facts, p->member, !complete));
	part_name("answer", p->member, name);
	TRY(add_part(l, name, p->answer, p->answer_n));
	if (complete) {
		TRY(end_round(p, f));
		return add_part(l, "trainer", p->state, p->state_n);
	}
	TRY(put_body(p, body));
	part_name("body", p->member, name);
	TRY(add_part(l, name, body->at, body->n));
	return keep_part(l, f, "trainer");
}

static clv_status write_shared(step *p, const session_file *f)
{
	part_list l = {0};
	strbuf body = STRBUF_INIT;
	clv_status st = collect(p, f, &body, &l);
	if (st == CLV_OK)
		st = session_write(p->x, p->s, &p->next, l.at, l.n);
	strbuf_free(&body);
	vec_free(&l);
	return st;
}

/* A member's answer is of its boundary alone, on the weights with which the round began. */
static clv_status make_shared(step *p)
{
	session_file f;
	TRY(run_step(p, false));
	TRY(session_rewind(p->x, p->s));
	note_step(p);
	TRY(session_file_open(p->x, p->s, &f));
	clv_status st = write_shared(p, &f);
	session_file_close(&f);
	return st;
}

/* ---- a step ---------------------------------------------------------------------------------------------------------------------------- */

static bool is_the_clients(clv_status st)
{
	return st == CLV_E_INPUT || st == CLV_E_PARSE || st == CLV_E_LAYOUT || st == CLV_E_UNSUPPORTED ||
	       st == CLV_E_INVALID || st == CLV_E_OVERFLOW;
}

static void count_step(const exchange *x, int64_t ns)
{
	tally *t = &x->served->tally;
	atomic_fetch_add(&t->train_steps, 1);
	histogram_add(&t->train_time, UNIT_SECONDS, ns);
	atomic_store(&t->last_ms, wall_milliseconds());
}

static void make_step(step *p)
{
	exchange *x = p->x;
	clv_status st = session_trainer(x, p->s, &p->trainer);
	x->at.ready = clock_nanoseconds();
	p->next = p->s->facts;
	if (st == CLV_OK)
		st = p->s->facts.shared ? make_shared(p) : make_own(p);
	x->at.ran = clock_nanoseconds();
	if (st != CLV_OK && (p->changed || st == CLV_E_INVALID || !is_the_clients(st))) /* INVALID: it may be broken */
		session_forget(p->s);
	if (!answer_run(x, st))
		return;
	count_step(x, x->at.ran - x->at.taken);
	answer_bytes(x, p->answer, p->answer_n);
	p->answer = NULL;
}

void train_step(exchange *x)
{
	step p = {.x = x, .s = take(x)};
	if (!p.s)
		return;
	if (read_step(&p) && is_next(&p))
		make_step(&p);
	session_give_back(p.s, x);
	mem_free(p.answer);
	mem_free(p.state);
}

/* ---- opening one ------------------------------------------------------------------------------------------------------------------------- */

typedef struct wish {
	char id[SESSION_NAME_MOST + 1], member[SESSION_NAME_MOST + 1];
	session_facts facts;
} wish;

static clv_status read_name(const json_t *root, const char *key, char to[SESSION_NAME_MOST + 1])
{
	const char *text;
	if (!json_object_get(root, key))
		return CLV_OK;
	TRY(json_get_string(root, key, &text));
	if (!session_is_name(text))
		return fail(CLV_E_INPUT, "\"%s\" has 1 to %d letters, digits, - and _", key, SESSION_NAME_MOST);
	memcpy(to, text, strlen(text) + 1);
	return CLV_OK;
}

static clv_status read_mode(const json_t *root, session_facts *f)
{
	const char *mode = "own";
	int64_t n = 1, seed = 0;
	if (json_object_get(root, "mode"))
		TRY(json_get_string(root, "mode", &mode));
	if (json_object_get(root, "accumulate"))
		TRY(json_get_int(root, "accumulate", &n));
	f->has_seed = json_object_get(root, "seed");
	if (f->has_seed)
		TRY(json_get_int(root, "seed", &seed));
	f->shared = strcmp(mode, "shared") == 0;
	if (!f->shared && strcmp(mode, "own") != 0)
		return fail(CLV_E_INPUT, "\"mode\" is \"own\" or \"shared\"");
	if (n < 1 || n > (f->shared ? SESSION_MEMBERS_MOST : INT32_MAX))
		return fail(CLV_E_INPUT, "\"accumulate\" is 1 to %d", f->shared ? SESSION_MEMBERS_MOST : INT32_MAX);
	f->accumulate = (uint32_t)n;
	f->seed = (uint64_t)seed;
	return CLV_OK;
}

static clv_status read_members(const json_t *root, wish *w)
{
	TRY(read_name(root, "id", w->id));
	TRY(read_name(root, "member", w->member));
	TRY(read_mode(root, &w->facts));
	if (w->facts.shared && !w->member[0])
		return fail(CLV_E_INPUT, "a shared session needs the name of the \"member\" that asks");
	return w->id[0] ? CLV_OK : session_name_new(w->id);
}

static clv_status read_wish(const exchange *x, wish *w)
{
	json_t *root = NULL;
	if (x->body.n)
		TRY(body_json(x, &root));
	clv_status st = read_members(root, w);
	json_decref(root);
	return st;
}

static void answer_session(exchange *x, const session *s, uint32_t member)
{
	strbuf b = STRBUF_INIT;
	const session_facts *f = &s->facts;
	member_open(&b, NULL, '{');
	member_text(&b, "id", s->id);
	member_text(&b, "model", s->model);
	member_text(&b, "mode", f->shared ? "shared" : "own");
	member_int(&b, "accumulate", f->accumulate);
	member_int(&b, "steps", (int64_t)f->steps);
	member_int(&b, "bytes", (int64_t)s->bytes);
	if (member != NONE) {
		member_int(&b, "member", member);
		member_int(&b, "expected", (int64_t)f->members[member].last + 1);
	}
	member_open(&b, "members", '[');
	for (uint32_t i = 0; i < f->nmembers; i++) {
		member_open(&b, NULL, '{');
		member_text(&b, "name", f->members[i].name);
		member_int(&b, "last", (int64_t)f->members[i].last);
		strbuf_putc(&b, '}');
	}
	strbuf_puts(&b, "]}");
	answer_text(x, 200, "application/json", &b);
}

static void add_member(session_facts *f, const char *name, const char *owner)
{
	session_member *m = &f->members[f->nmembers++];
	*m = (session_member){.last = f->steps};
	snprintf(m->name, sizeof m->name, "%s", name);
	snprintf(m->owner, sizeof m->owner, "%s", owner);
}

static uint32_t find_member(const session_facts *f, const char *name)
{
	for (uint32_t i = 0; i < f->nmembers; i++)
		if (!f->shared || strcmp(f->members[i].name, name) == 0)
			return i;
	return NONE;
}

/* t NULL: its trainer stays as it is there. */
static clv_status rewrite(exchange *x, session *s, const session_facts *next, const clv_trainer *t)
{
	session_file f;
	part_list l = {0};
	void *state = NULL;
	size_t n = 0;
	if (t)
		TRY(clv_trainer_state(t, &state, &n));
	clv_status st = session_file_open(x, s, &f);
	if (st == CLV_OK) {
		st = t ? add_part(&l, "trainer", state, n) : keep_part(&l, &f, "trainer");
		if (st == CLV_OK)
			st = keep_parts(&l, &f, &s->facts, NONE, true);
		if (st == CLV_OK)
			st = session_write(x, s, next, l.at, l.n);
		session_file_close(&f);
	}
	vec_free(&l);
	mem_free(state);
	return st;
}

static bool is_as_wished(exchange *x, const session *s, const wish *w)
{
	const session_facts *a = &s->facts, *b = &w->facts;
	if (a->shared != b->shared || a->accumulate != b->accumulate || a->has_seed != b->has_seed || a->seed != b->seed)
		answer_error(x, 409, "the session is there with another mode, seed or number to accumulate");
	return !x->out.status;
}

static void join(exchange *x, session *s, const wish *w)
{
	uint32_t i = find_member(&s->facts, w->member);
	session_facts next = s->facts;
	if (i != NONE) {
		if (is_mine(x, s->facts.members[i].owner))
			answer_session(x, s, i);
		return;
	}
	if (next.nmembers == next.accumulate) {
		answer_error(x, 409, "the session has its %u members", next.accumulate);
		return;
	}
	add_member(&next, w->member, x->owner);
	if (answer_status(x, rewrite(x, s, &next, NULL)))
		answer_session(x, s, next.nmembers - 1);
}

/* Masks that a member's answer was made with must be those of its share: shares are worked out again, all in one row. */
static clv_status check_shared(const session *s, const artifact *a)
{
	training about;
	if (!s->facts.shared)
		return CLV_OK;
	clv_status st = training_read(clv_artifact_training(a), &about);
	bool tied = st == CLV_OK && about.tied.n;
	training_free(&about);
	TRY(st);
	if (tied)
		return fail(CLV_E_UNSUPPORTED,
		            "both halves train a parameter, which several clients cannot share: let each have "
		            "a session of its own");
	if (s->facts.accumulate == 1 || !trainer_draws(s->trainer))
		return CLV_OK;
	return fail(CLV_E_UNSUPPORTED, "the model draws random numbers (dropout), which several clients cannot share: "
	                               "let each have a session of its own");
}

static clv_status begin(exchange *x, session *s)
{
	clv_trainer *t;
	void *state;
	size_t n;
	TRY(session_trainer(x, s, &t));
	TRY(check_shared(s, x->served->artifact));
	TRY(clv_trainer_state(t, &state, &n));
	session_bytes part = {"trainer", state, n};
	clv_status st = session_write(x, s, &s->facts, &part, 1);
	mem_free(state);
	return st;
}

void train_open(exchange *x)
{
	wish w = {0};
	bool made = false;
	if (!find_trained(x) || !answer_status(x, read_wish(x, &w)))
		return;
	add_member(&w.facts, w.member, x->owner);
	session *s = session_open(x, w.id, &w.facts, &made);
	if (!s)
		return;
	if (made && !answer_status(x, begin(x, s))) {
		session_drop(x->s, s);
		return;
	}
	if (made || is_as_wished(x, s, &w))
		join(x, s, &w);
	session_give_back(s, x);
}

/* ---- about one ----------------------------------------------------------------------------------------------------------------------------- */

static void tell(void *ctx, const session *s)
{
	exchange *x = ctx;
	if (s->facts.shared || is_mine(x, s->owner))
		answer_session(x, s, NONE);
}

void train_about(exchange *x)
{
	if (is_named(x))
		answer_status(x, session_look(x, x->session, tell, x));
}

void train_end(exchange *x)
{
	session *s = take(x);
	if (s && is_mine(x, s->owner)) {
		session_drop(x->s, s);
		answer_empty(x, 200);
	} else if (s) {
		session_give_back(s, x);
	}
}

void train_state(exchange *x)
{
	session *s = take(x);
	if (!s)
		return;
	if (is_mine(x, s->owner))
		answer_status(x, answer_part(x, s, "trainer"));
	session_give_back(s, x);
}

/* ---- parameters of both halves ----------------------------------------------------------------------------------------------------------------- */

static clv_status apply_entries(clv_trainer *t, exchange *x, const st_file *f)
{
	uint32_t n = st_count(f);
	const char **names = mem_alloc((n + 1) * sizeof *names);
	clv_tensor **grads = mem_alloc((n + 1) * sizeof *grads);
	clv_status st = names && grads ? CLV_OK : fail_nomem();
	for (uint32_t i = 0; st == CLV_OK && i < n; i++) {
		const st_entry *e = st_at(f, i);
		names[i] = e->name;
		st = exchange_hold(x, e->nbytes);
		if (st == CLV_OK)
			st = entry_tensor(e, &grads[i]);
	}
	if (st == CLV_OK)
		st = clv_trainer_apply_tied(t, names, (const clv_tensor *const *)grads, n);
	for (uint32_t i = 0; grads && i < n; i++)
		clv_tensor_free(grads[i]);
	mem_free(grads);
	mem_free(names);
	return st;
}

static clv_status apply_body(clv_trainer *t, exchange *x)
{
	st_file *f;
	TRY(exchange_hold(x, json_memory_most(st_header_bytes(body_at(&x->body), x->body.n))));
	TRY(st_parse(body_at(&x->body), x->body.n, &f));
	clv_status st = apply_entries(t, x, f);
	st_free(f);
	return st;
}

static clv_status make_tied(exchange *x, session *s, uint64_t number)
{
	clv_trainer *t;
	session_facts next = s->facts;
	TRY(session_trainer(x, s, &t));
	clv_status st = apply_body(t, x);
	next.members[0].tied = number;
	if (st == CLV_OK)
		st = rewrite(x, s, &next, t);
	if (st != CLV_OK)
		session_forget(s);
	return st;
}

static void tied_in(exchange *x, session *s)
{
	int64_t number;
	const session_member *m = &s->facts.members[0];
	if (!read_number(x, "cleave-step", -1, &number))
		return;
	if (s->facts.shared) {
		answer_error(x, 400, "tied parameters are stepped in sessions of one client alone");
	} else if ((uint64_t)number != m->last || !number) {
		answer_expected(x, m->last + 1, "tied parameters are stepped after the step that they belong to");
	} else if (m->tied == (uint64_t)number || answer_run(x, make_tied(x, s, (uint64_t)number))) {
		answer_empty(x, 200);
	}
}

void train_tied(exchange *x)
{
	session *s = take(x);
	if (!s)
		return;
	tied_in(x, s);
	session_give_back(s, x);
}
