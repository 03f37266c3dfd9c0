// Code that AOTInductor made: a shared object from memory, run on tensors through its C functions.
//
// Handles of tensors are pointers to at::Tensor on the heap. Only functions that every torch since 2.11 has are needed; what
// later ones add is used where it is there.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "bridge/impl.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

using bridge::borrow;
using bridge::release;

namespace {

constexpr size_t MOST_RUNS = 16; // at a time; more wait

using Status = int32_t;
using Container = void *;

struct Functions {
	Status (*create)(Container *, size_t, const char *, const char *);
	Status (*destroy)(Container);
	Status (*run)(Container, at::Tensor **, size_t, at::Tensor **, size_t, void *, void *);
	Status (*inputs)(Container, size_t *);
	Status (*outputs)(Container, size_t *);
	Status (*last_error)(const char **); // since 2.13
};

} // namespace

struct br_aoti {
	void *object = nullptr;
	Container container = nullptr;
	Functions fn{};
	at::Device device{at::kCPU};
	size_t ninputs = 0, noutputs = 0;
};

namespace {

// ---- a shared object from memory

clv_status write_all(int fd, const char *data, size_t n)
{
	while (n) {
		ssize_t did = write(fd, data, n);
		if (did < 0 && errno == EINTR)
			continue;
		if (did <= 0)
			return fail(CLV_E_IO, "compiled code cannot be written to memory: %s", strerror(did < 0 ? errno : ENOSPC));
		data += did;
		n -= static_cast<size_t>(did);
	}
	return CLV_OK;
}

// The loader takes two objects of one name for the same one, also after the first is closed, and numbers of files are used
// again. So every object has a name of its own: the bits of a counter as "/" and "/.", which lead nowhere.
std::string fd_path(int fd)
{
	static std::atomic<uint32_t> count{0};
	std::string path = "/proc/self/fd";
	for (uint32_t bits = ++count; bits; bits >>= 1)
		path += bits & 1 ? "/." : "/";
	return path + "/" + std::to_string(fd);
}

int memory_file()
{
#ifdef MFD_EXEC
	int fd = memfd_create("cleave", MFD_CLOEXEC | MFD_EXEC);
	if (fd >= 0 || errno != EINVAL)
		return fd;
#endif
	return memfd_create("cleave", MFD_CLOEXEC);
}

// A file that nobody else sees for long.
int disk_file(std::string *path)
{
	const char *dir = std::getenv("TMPDIR");
	*path = std::string(dir && *dir ? dir : "/tmp") + "/cleave-XXXXXX";
	return mkostemp(path->data(), O_CLOEXEC);
}

// *fd stays open until the object has read what it wants from its own file.
clv_status open_object(const void *data, size_t n, void **object, int *fd)
{
	std::string path;
	*fd = memory_file();
	if (*fd >= 0) {
		TRY(write_all(*fd, static_cast<const char *>(data), n));
		*object = dlopen(fd_path(*fd).c_str(), RTLD_NOW | RTLD_LOCAL);
		if (*object)
			return CLV_OK;
		close(*fd);
	}
	std::string why = *fd < 0 ? strerror(errno) : dlerror();
	*fd = disk_file(&path); // where memory cannot be run
	if (*fd < 0)
		return fail(CLV_E_IO, "compiled code cannot be loaded: %s; nor is there a place for it: %s", why.c_str(),
		            strerror(errno));
	clv_status st = write_all(*fd, static_cast<const char *>(data), n);
	if (st == CLV_OK) {
		*object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
		if (!*object)
			st = fail(CLV_E_INVALID, "compiled code cannot be loaded: %s", dlerror());
	}
	unlink(path.c_str());
	return st;
}

// ---- its functions

template <typename F> bool find(void *object, const char *name, F *out)
{
	*out = reinterpret_cast<F>(dlsym(object, name));
	return *out != nullptr;
}

clv_status find_functions(void *object, Functions *fn)
{
	if (!find(object, "AOTInductorModelContainerCreateWithDevice", &fn->create) ||
	    !find(object, "AOTInductorModelContainerDelete", &fn->destroy) ||
	    !find(object, "AOTInductorModelContainerRun", &fn->run) ||
	    !find(object, "AOTInductorModelContainerGetNumInputs", &fn->inputs) ||
	    !find(object, "AOTInductorModelContainerGetNumOutputs", &fn->outputs))
		return fail(CLV_E_INVALID, "this is no code of AOTInductor: %s", dlerror());
	find(object, "AOTInductorGetLastError", &fn->last_error);
	return CLV_OK;
}

clv_status failed(const br_aoti *m, const char *what)
{
	const char *text = nullptr;
	if (m->fn.last_error && m->fn.last_error(&text) == 0 && text && *text)
		return fail(CLV_E_TORCH, "compiled code cannot be %s: %s", what, text);
	return fail(CLV_E_TORCH, "compiled code cannot be %s; it wrote the reason to stderr", what);
}

clv_status make_container(br_aoti *m, const char *device)
{
	size_t runs = std::min<size_t>(std::max(1U, std::thread::hardware_concurrency()), MOST_RUNS);
	TRY(find_functions(m->object, &m->fn));
	if (m->fn.create(&m->container, runs, device, nullptr) != 0) {
		m->container = nullptr;
		return failed(m, "set up");
	}
	if (m->fn.inputs(m->container, &m->ninputs) != 0 || m->fn.outputs(m->container, &m->noutputs) != 0)
		return failed(m, "asked for its inputs");
	return CLV_OK;
}

// The object stays: threads of OpenMP, and tensors on its memory, may outlive it. Its data is gone with the container.
void drop(br_aoti *m)
{
	if (m->container)
		m->fn.destroy(m->container);
	delete m;
}

void drop_tensors(std::vector<at::Tensor *> &tensors)
{
	for (at::Tensor *t : tensors)
		delete t;
}

} // namespace

clv_status br_aoti_load(const void *data, size_t n, const char *device, br_aoti **out)
{
	int fd = -1;
	br_aoti *m = nullptr;
	BRIDGE_CATCH({
		m = new br_aoti;
		m->device = at::Device(device);
		clv_status st = open_object(data, n, &m->object, &fd);
		if (st == CLV_OK)
			st = make_container(m, device);
		if (fd >= 0)
			close(fd);
		if (st == CLV_OK)
			*out = m;
		else
			drop(m);
		return st;
	})
}

void br_aoti_free(br_aoti *m)
{
	if (m)
		drop(m);
}

void br_aoti_count(const br_aoti *m, uint32_t *ninputs, uint32_t *noutputs)
{
	*ninputs = static_cast<uint32_t>(m->ninputs);
	*noutputs = static_cast<uint32_t>(m->noutputs);
}

clv_status br_aoti_run(const br_aoti *m, br_tensor *const *inputs, br_tensor **outputs)
{
	std::vector<at::Tensor *> in;
	std::vector<at::Tensor *> made;
	try {
		at::AutoDispatchBelowADInplaceOrView below;
		c10::impl::ExcludeDispatchKeyGuard plain(c10::autocast_dispatch_keyset);
		void *stream = nullptr;
		in.reserve(m->ninputs);
		made.resize(m->noutputs, nullptr);
		for (size_t i = 0; i < m->ninputs; i++)
			in.push_back(new at::Tensor(borrow(inputs[i])));
		if (!m->device.is_cpu()) {
			c10::impl::VirtualGuardImpl guard(m->device.type());
			stream = guard.getStream(m->device).native_handle();
		}
		std::vector<at::Tensor *> given = std::move(in); // theirs from here on
		in.clear();
		if (m->fn.run(m->container, given.data(), given.size(), made.data(), made.size(), stream, nullptr) != 0) {
			drop_tensors(made);
			return failed(m, "run");
		}
		for (size_t i = 0; i < m->noutputs; i++)
			outputs[i] = release(std::move(*made[i]));
		drop_tensors(made);
		return CLV_OK;
	} catch (...) {
		drop_tensors(in);
		return bridge::fail_exception(__FILE__, __LINE__);
	}
}

const char *br_torch_version(void)
{
	static const std::string text = [] {
		uint64_t v = aoti_torch_abi_version(); // a byte each, from the highest
		return std::to_string(v >> 56) + "." + std::to_string(v >> 48 & 255) + "." + std::to_string(v >> 40 & 255);
	}();
	return text.c_str();
}
