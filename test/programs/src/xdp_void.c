// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Takes its context as void *, which a joined chain must fix.
#include "counter.h"

SEC("xdp")
int xdp_void(void *ctx)
{
	count();
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
