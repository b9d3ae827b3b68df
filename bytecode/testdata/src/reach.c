// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// What a program reaches only through others: a helper two calls deep in a
// static function, one in a global function, one in a callback of a callback,
// one in a timer. The second program reaches none of it.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct timed {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct timed);
} timers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

static __attribute__((noinline)) int deepest(void *ctx)
{
	return bpf_get_prandom_u32();
}

static __attribute__((noinline)) int deep(void *ctx)
{
	return deepest(ctx) + bpf_get_smp_processor_id();
}

__attribute__((noinline)) int global_function(int n)
{
	return n + bpf_get_numa_node_id();
}

static int inner_callback(__u32 i, void *ctx)
{
	__u64 now = bpf_ktime_get_boot_ns();

	bpf_ringbuf_output(&events, &now, sizeof(now), 0);
	return 0;
}

static long outer_callback(void *map, const void *key, void *value, void *ctx)
{
	bpf_loop(3, inner_callback, 0, 0);
	return 0;
}

static int on_timer(void *map, int *key, struct timed *value)
{
	bpf_trace_printk("tick", 5);
	return 0;
}

SEC("xdp")
int reaches_all(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct timed *t;

	bpf_for_each_map_elem(&seen, outer_callback, 0, 0);
	t = bpf_map_lookup_elem(&timers, &zero);
	if (t) {
		bpf_timer_init(&t->timer, &timers, 1);
		bpf_timer_set_callback(&t->timer, on_timer);
	}
	return deep(ctx) + global_function(1) ? XDP_PASS : XDP_DROP;
}

SEC("xdp")
int reaches_none(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
