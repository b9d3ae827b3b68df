// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Has a licence that is not the GPL and needs no GPL-only helper.
#include "counter.h"

SEC("xdp")
int xdp_proprietary(struct xdp_md *ctx)
{
	count();
	return XDP_PASS;
}

char _license[] SEC("license") = "Proprietary";
