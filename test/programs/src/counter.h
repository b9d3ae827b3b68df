/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* One per-CPU counter under key 0 of the map "counts", which every counting
 * program of this folder has, so that one test can read all of them. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline void count(void)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&counts, &key);

	if (value)
		*value += 1;
}
