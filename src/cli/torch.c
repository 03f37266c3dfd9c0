/* Starts cleave-torch for the commands that run plans.
 * Commands that run plans. `cleave` starts in milliseconds because it does not link torch; for these commands it becomes
 * `cleave-torch`, the same program with torch, unless the native engine runs the plan or there is no other. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

char *program_at(const char *relative)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	if (n < 0)
		return NULL;
	self[n] = '\0';
	char *slash = strrchr(self, '/');
	if (slash)
		slash[1] = '\0';
	size_t size = strlen(self) + strlen(relative) + 1;
	char *path = grab(size);
	snprintf(path, size, "%s%s", self, relative);
	struct stat st;
	if (access(path, X_OK) == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode))
		return path;
	free(path);
	return NULL;
}

static char *find_torch_program(void)
{
	const char *given = getenv("CLEAVE_TORCH_PROGRAM");
	if (given && *given)
		return grab_text(given, strlen(given));
	char *path = program_at("cleave-torch");
	if (!path)
		path = program_at("../libexec/cleave/cleave-torch");
	if (!path)
		path = program_at("../cleave/cleave-torch"); /* of a wheel */
	return path;
}

#if defined(CLEAVE_CLI_TORCH) || defined(CLEAVE_CLI_EDGE) /* this is it, or there never is one */
bool runs_here(const command *c, const void *given)
{
	(void)c, (void)given;
	return true;
}
#else
bool runs_here(const command *c, const void *given)
{
	if (c->wants_torch)
		return !c->wants_torch(given);
	if (!c->torch || !c->engine_at)
		return c->run || c->on_model;
	const char *engine = *(const char *const *)((const char *)given + c->engine_at);
	if (engine && strcmp(engine, "auto") != 0)
		return strcmp(engine, "native") == 0;
	char *torch = find_torch_program();
	free(torch);
	return !torch;
}
#endif

int run_with_torch(const command *c, char **argv)
{
	char *path = find_torch_program();
	if (!path) {
		complain("%s needs cleave-torch, which is not installed next to this program", c->name);
		hint("`pip install` of Cleave has it, and so has a build that finds torch; CLEAVE_TORCH_PROGRAM names another");
		return EXIT_FAILED;
	}
	char *name = argv[0];
	argv[0] = path;
	fflush(stdout);
	execv(path, argv);
	complain("%s: cannot be started: %s", path, strerror(errno));
	argv[0] = name;
	free(path);
	return EXIT_FAILED;
}
