// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Counts the socket options a cgroup reads.
#include "counter.h"

SEC("cgroup/getsockopt")
int cgroup_getsockopt(struct bpf_sockopt *ctx)
{
	/* Larger buffers than a page are passed on untouched. */
	if (ctx->optlen > 4096)
		ctx->optlen = 0;
	count();
	return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
