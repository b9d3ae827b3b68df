// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A tracepoint that may be written to.
#include "program.h"

SEC("raw_tp.w/bpf_test_finish")
int writes(struct bpf_raw_tracepoint_args *ctx)
{
	int *result = (int *)ctx->args[0];

	if (*result == 12345)
		*result = 0;
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
