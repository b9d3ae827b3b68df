// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A call to a function that another object was to bring.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

int elsewhere(int n);

SEC("xdp")
int calls_elsewhere(struct xdp_md *ctx)
{
	return elsewhere(1);
}

char _license[] SEC("license") = "GPL";
