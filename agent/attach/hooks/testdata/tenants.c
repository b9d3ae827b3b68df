// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts, by a program for each hook, what tasks do.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

#define PROGRAM(NAME, SECTION)                                     \
	SEC(SECTION)                                               \
	int NAME(void *ctx)                                        \
	{                                                          \
		__u32 key = 0;                                     \
		__u64 *count = bpf_map_lookup_elem(&counts, &key); \
                                                                   \
		if (count)                                         \
			__sync_fetch_and_add(count, 1);            \
		return 0;                                          \
	}

PROGRAM(on_kprobe, "kprobe")
PROGRAM(on_ksyscall, "ksyscall")
PROGRAM(on_fentry, "fentry/security_task_getpgid")
PROGRAM(on_lsm, "lsm/task_getpgid")
PROGRAM(on_usdt, "usdt")

char _license[] SEC("license") = "Dual BSD/GPL";
