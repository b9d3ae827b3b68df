// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A small file that asks for a gigabyte.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char bomb[1 << 30];

SEC("socket")
int lights(void *ctx)
{
	return bomb[0];
}

char _license[] SEC("license") = "GPL";
