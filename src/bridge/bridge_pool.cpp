// The allocator of CPU tensors that serves runs from their pools (memory/pool.h), and captures from what they let go of
// (memory/recycle.h). Other threads go straight to the allocator that was there before; so does what neither has.
#include "bridge/impl.hpp"

#include <c10/core/CPUAllocator.h>

#include <malloc.h>

extern "C" {
#include "base/limits.h"
}
#include "memory/recycle.h"

#include <mutex>

namespace {

c10::Allocator *beneath = nullptr; // set once, before the allocator is

// Also of what was got through raw_allocate, where only the pointer tells what it is.
void release(void *at)
{
	if (!pool_release(at) && !recycle_keep(at))
		beneath->raw_deleter()(at);
}

void give_back(void *at)
{
	limits_count(-static_cast<int64_t>(malloc_usable_size(at)));
	beneath->raw_deleter()(at);
}

// Of a run that may have so much memory and no more.
c10::DataPtr counted(size_t n)
{
	if (n > INT64_MAX || limits_room(static_cast<int64_t>(n)) != CLV_OK)
		throw bridge::Limit();
	c10::DataPtr data = beneath->allocate(n);
	if (data.compare_exchange_deleter(beneath->raw_deleter(), &give_back))
		limits_count(static_cast<int64_t>(malloc_usable_size(data.get())));
	return data;
}

c10::DataPtr owned(void *at)
{
	return {at, at, &release, c10::Device(c10::DeviceType::CPU)};
}

c10::DataPtr recycled(size_t n)
{
	size_t room;
	if (void *at = recycle_take(n, &room))
		return owned(at);
	c10::DataPtr data;
	try {
		data = beneath->allocate(room);
	} catch (...) { // what lies idle may be all that is missing
		recycle_drop(beneath->raw_deleter());
		return beneath->allocate(n);
	}
	if (data.compare_exchange_deleter(beneath->raw_deleter(), &release))
		recycle_note(data.get(), room);
	return data;
}

struct PoolAllocator final : c10::Allocator {
	c10::DataPtr allocate(size_t n) override
	{
		if (n && limits_bytes())
			return counted(n);
		if (n == 0 || !(pool_entered() || recycle_entered(n)))
			return beneath->allocate(n);
		if (!pool_entered())
			return recycled(n);
		if (void *at = pool_serve(n))
			return owned(at);
		c10::DataPtr data = beneath->allocate(n);
		if (pool_note(data.get(), n))
			(void)data.compare_exchange_deleter(beneath->raw_deleter(), &release);
		return data;
	}
	c10::DeleterFnPtr raw_deleter() const override { return &release; }
	void copy_data(void *to, const void *from, std::size_t n) const override { beneath->copy_data(to, from, n); }
};

PoolAllocator *const ours = new PoolAllocator; // never deleted: storages hold it until the process is gone

bool in_place()
{
	return c10::GetAllocator(c10::DeviceType::CPU) == ours;
}

// Of all places of a run at once: that is what it takes from the system.
void tell_profiler(const pool_run *r, bool takes)
{
	int64_t bytes = static_cast<int64_t>(pool_run_bytes(r));
	if (bytes && c10::memoryProfilingEnabled())
		c10::reportMemoryUsageToProfiler(const_cast<pool_run *>(r), takes ? bytes : -bytes, 0, 0,
		                                 c10::Device(c10::DeviceType::CPU));
}

} // namespace

bool br_pool_install(void)
{
	static std::mutex lock;
	std::lock_guard<std::mutex> guard(lock);
	if (in_place())
		return true;
	c10::Allocator *there = c10::GetAllocator(c10::DeviceType::CPU);
	// Whoever replaced torch's own allocator did so for a reason, and one that replaced ours does not want it back.
	if (beneath || there != c10::GetDefaultCPUAllocator() || !there->raw_deleter())
		return false;
	beneath = there;
	c10::SetAllocator(c10::DeviceType::CPU, ours);
	return in_place();
}

bool bridge::recycles(size_t bytes)
{
	return in_place() && recycle_entered(bytes);
}

void br_recycle(bool on)
{
	if (!on) {
		recycle_end(beneath ? beneath->raw_deleter() : nullptr); // without it nothing was recycled
		return;
	}
	(void)br_pool_install();
	recycle_begin();
}

pool_run *br_pool_enter(pool *p, const int64_t *key)
{
	if (!in_place())
		return nullptr;
	pool_run *r = pool_enter(p, key);
	if (r)
		tell_profiler(r, true);
	return r;
}

void br_pool_leave(pool_run *r, bool complete)
{
	if (!r)
		return;
	tell_profiler(r, false);
	pool_leave(r, complete);
}
