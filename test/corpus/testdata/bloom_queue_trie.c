// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A bloom filter, a queue, a stack and a trie.
#include "program.h"

struct {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__type(value, __u32);
	__uint(max_entries, 1000);
	__uint(map_extra, 3);
} bloom SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__type(value, __u32);
	__uint(max_entries, 16);
} queue SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__type(value, __u32);
	__uint(max_entries, 16);
} stack SEC(".maps");

struct key {
	__u32 length;
	__u32 address;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__type(key, struct key);
	__type(value, __u32);
	__uint(max_entries, 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} trie SEC(".maps");

SEC("tp/syscalls/sys_enter_getpgid")
int uses(void *ctx)
{
	__u32 value = 7;
	struct key key = { .length = 32, .address = 1 };

	bpf_map_push_elem(&bloom, &value, BPF_ANY);
	bpf_map_push_elem(&queue, &value, BPF_EXIST);
	bpf_map_push_elem(&stack, &value, BPF_EXIST);
	bpf_map_update_elem(&trie, &key, &value, BPF_ANY);
	if (!bpf_map_peek_elem(&bloom, &value))
		ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
