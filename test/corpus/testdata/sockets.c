// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Programs of a cgroup and a network namespace.
#include "program.h"

SEC("sockops")
int options(struct bpf_sock_ops *ctx)
{
	ran++;
	return 1;
}

SEC("cgroup/connect4")
int connects(struct bpf_sock_addr *ctx)
{
	ran++;
	return 1;
}

SEC("cgroup/getsockopt")
int gets(struct bpf_sockopt *ctx)
{
	ran++;
	return 1;
}

SEC("sk_lookup")
int looks_up(struct bpf_sk_lookup *ctx)
{
	ran++;
	return SK_PASS;
}

char _license[] SEC("license") = "GPL";
