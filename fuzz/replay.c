/* Runs a fuzz target over files instead of under libFuzzer, so that `make test` replays the corpus with any compiler.
 *
 *     replay_plan fuzz/corpus/plan/... */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The whole file, in a block of exactly its size, so that a sanitizer sees a read past the end; caller frees.
   NULL if it cannot be read. */
static uint8_t *read_file(const char *path, size_t *size_out)
{
	FILE *f = fopen(path, "rb");
	if (!f || fseek(f, 0, SEEK_END))
		return NULL;
	size_t size = (size_t)ftell(f);
	uint8_t *data = malloc(size ? size : 1);
	rewind(f);
	if (data && fread(data, 1, size, f) != size) {
		free(data);
		data = NULL;
	}
	fclose(f);
	*size_out = size;
	return data;
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		size_t size;
		uint8_t *data = read_file(argv[i], &size);
		if (!data) {
			fprintf(stderr, "cannot read %s\n", argv[i]);
			return 1;
		}
		LLVMFuzzerTestOneInput(data, size);
		free(data);
	}
	printf("%d files\n", argc - 1);
	return 0;
}
