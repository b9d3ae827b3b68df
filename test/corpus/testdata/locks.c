// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A spin lock, and a sum that is atomic.
#include "program.h"

struct value {
	struct bpf_spin_lock lock;
	__u64 sum;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, struct value);
} sums SEC(".maps");

SEC("cgroup_skb/egress")
int adds(struct __sk_buff *skb)
{
	__u32 key = 1;
	struct value fresh = {}, *value = bpf_map_lookup_elem(&sums, &key);

	if (value) {
		bpf_spin_lock(&value->lock);
		value->sum += skb->len;
		bpf_spin_unlock(&value->lock);
	} else {
		bpf_map_update_elem(&sums, &key, &fresh, BPF_NOEXIST);
	}
	__sync_fetch_and_add(&ran, 1);
	return 1;
}

char _license[] SEC("license") = "GPL";
