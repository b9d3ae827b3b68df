// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// One link for many functions of a binary.
#include "program.h"

SEC("uprobe.multi//tmp/skep-corpus-binary:work_*")
int entries(struct pt_regs *ctx)
{
	ran += !!bpf_get_func_ip(ctx);
	return 0;
}

SEC("uretprobe.multi//tmp/skep-corpus-binary:work_*")
int returns(struct pt_regs *ctx)
{
	ran += !!bpf_get_attach_cookie(ctx) + 1;
	return 0;
}

char _license[] SEC("license") = "GPL";
