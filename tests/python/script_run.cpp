// A program without Python that runs a ScriptModule with compiled segments: script_run LIBCLEAVE MODULE INPUT OUTPUT.
// INPUT and OUTPUT are modules too, with an attribute `x`: tensors go from and to Python without a format of our own.
#include <dlfcn.h>
#include <torch/script.h>

#include <iostream>

int main(int argc, char **argv)
try {
	if (argc != 5)
		return 2;
	if (!dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)) {
		std::cerr << dlerror() << "\n";
		return 1;
	}
	c10::InferenceMode inference;
	torch::jit::Module model = torch::jit::load(argv[2]);
	at::Tensor x = torch::jit::load(argv[3]).attr("x").toTensor();
	for (int i = 0; i < 3; i++) { // the first runs are profiled and optimised
		torch::jit::Module out("Out");
		out.register_buffer("x", model.forward({x}).toTensor());
		out.save(argv[4]);
	}
	return 0;
} catch (const std::exception &e) {
	std::cerr << e.what() << "\n";
	return 1;
}
