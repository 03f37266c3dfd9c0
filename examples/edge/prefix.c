/* Runs the first half of a model on a device: reads an image, runs the prefix without libtorch, writes the boundary.
 *
 *     prefix prefix.clv image.ppm boundary.safetensors
 *
 * The image is a binary PPM (P6, 8 bits) of the size that the model takes; pixels become floats from 0 to 1, channel by
 * channel. The boundary is a safetensors file, which the suffix takes anywhere: cleave run suffix.clv --boundary FILE. */
#include <cleave.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* Pixels of a PPM file as f32[1,3,H,W]; the tensor owns them. NULL: the file is no such image. */
static clv_tensor *read_image(const char *path)
{
	int width = 0, height = 0, depth = 0;
	clv_tensor *image = NULL;
	FILE *f = fopen(path, "rb");
	bool good = f && fscanf(f, "P6 %d %d %d", &width, &height, &depth) == 3 && fgetc(f) != EOF && depth == 255 &&
	            width > 0 && height > 0 && width <= 1 << 14 && height <= 1 << 14;
	size_t pixels = good ? (size_t)width * (size_t)height : 0;
	float *to = good ? malloc(3 * pixels * sizeof *to) : NULL;
	for (size_t i = 0; to && i < 3 * pixels; i++)
		to[i % 3 * pixels + i / 3] = (float)fgetc(f) / 255;
	if (!to || feof(f) || clv_tensor_wrap(to, "f32", 4, (int64_t[]){1, 3, height, width}, NULL, free, to, &image))
		free(to);
	if (f)
		fclose(f);
	return image;
}

int main(int argc, char **argv)
{
	clv_runtime_options options = CLV_RUNTIME_OPTIONS_INIT;
	clv_artifact *file = NULL;
	clv_runtime *model = NULL;
	clv_boundary *boundary = NULL;
	if (argc != 4)
		return fprintf(stderr, "usage: %s prefix.clv image.ppm boundary.safetensors\n", argv[0]), 2;
	clv_tensor *image = read_image(argv[2]);
	if (!image)
		return fprintf(stderr, "%s: not a binary PPM image with 8 bits a channel\n", argv[2]), 1;
	options.engine = "native";
	options.sandbox = CLV_SANDBOX_OFF; /* the file is as trusted as this program, which came with it */
	bool done = !clv_artifact_open(argv[1], NULL, &file) && !clv_runtime_create(file, &options, &model) &&
	            !clv_runtime_run_prefix(model, (const clv_tensor *const[]){image}, 1, &boundary) &&
	            !clv_boundary_save(boundary, NULL, argv[3]);
	if (!done)
		fprintf(stderr, "%s\n", clv_last_error());
	clv_boundary_free(boundary);
	clv_runtime_free(model);
	clv_artifact_free(file);
	clv_tensor_free(image);
	return !done;
}
