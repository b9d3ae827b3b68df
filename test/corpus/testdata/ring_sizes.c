// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Rings of sizes that no kernel takes: libbpf rounds them up to pages, by powers of two.
#include "program.h"

struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1000);
} small SEC(".maps"), in_array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 3 * 64 * 1024);
} three_pages SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct ring);
} rings SEC(".maps") = {
	.values = { &in_array },
};

SEC("tracepoint/syscalls/sys_enter_getpgid")
int writes(void *ctx)
{
	__u32 key = 0;
	__u64 value = 1;
	void *ring = bpf_map_lookup_elem(&rings, &key);

	bpf_ringbuf_output(&small, &value, sizeof(value), 0);
	bpf_ringbuf_output(&three_pages, &value, sizeof(value), 0);
	if (ring)
		bpf_ringbuf_output(ring, &value, sizeof(value), 0);
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
