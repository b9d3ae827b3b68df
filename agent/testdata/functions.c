// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts calls of many functions of one binary, and their returns.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

const volatile __u64 version = 1;

__u64 runs;

SEC("uprobe.multi")
int on_entry(void *ctx)
{
	__sync_fetch_and_add(&runs, version);
	return 0;
}

SEC("uretprobe.multi")
int on_return(void *ctx)
{
	__sync_fetch_and_add(&runs, version);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
