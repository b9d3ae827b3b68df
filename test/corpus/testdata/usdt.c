// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// A probe that a binary declares, and its arguments.
#include "program.h"
#include <bpf/usdt.bpf.h>

__u64 argument, cookie, count;

SEC("usdt//tmp/skep-corpus-binary:skep:one")
int BPF_USDT(fires, long first)
{
	argument = first;
	cookie = bpf_usdt_cookie(ctx);
	count = bpf_usdt_arg_cnt(ctx);
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
