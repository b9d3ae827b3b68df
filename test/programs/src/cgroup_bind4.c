// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts IPv4 binds of a cgroup and refuses those to one port.
#include "counter.h"
#include <bpf/bpf_endian.h>

/* The port refused, in host order; 0 refuses none. */
const volatile __u16 deny_port = 0;

SEC("cgroup/bind4")
int cgroup_bind4(struct bpf_sock_addr *ctx)
{
	count();
	return !(deny_port && ctx->user_port == bpf_htons(deny_port));
}

char _license[] SEC("license") = "Dual BSD/GPL";
