// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Takes the address of one kernel symbol that exists and one that does not.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern void bpf_prog_put __ksym __weak;
extern void skep_no_such_variable __ksym __weak;

SEC("xdp")
int ksym(struct xdp_md *ctx)
{
	if (&skep_no_such_variable)
		return XDP_ABORTED;
	return &bpf_prog_put ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
