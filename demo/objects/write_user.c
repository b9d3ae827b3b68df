// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Could write into the memory of any process: the baseline policy refuses it,
// whoever signed it.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

const volatile __u64 address = 0;

SEC("tracepoint/syscalls/sys_enter_getpgid")
int rewrite(void *ctx)
{
	__u64 zero = 0;

	if (address)
		bpf_probe_write_user((void *)address, &zero, sizeof(zero));
	return 0;
}

char _license[] SEC("license") = "GPL";
