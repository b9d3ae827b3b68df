// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts sockets a cgroup makes and refuses those of one family.
#include "counter.h"

/* The address family refused; 0 refuses none. */
const volatile __u32 deny_family = 0;

SEC("cgroup/sock_create")
int cgroup_sock_create(struct bpf_sock *ctx)
{
	count();
	return !(deny_family && ctx->family == deny_family);
}

char _license[] SEC("license") = "Dual BSD/GPL";
