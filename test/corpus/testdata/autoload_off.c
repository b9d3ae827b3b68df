// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// libbpf loads neither of them unless its user asks; a definition names them.
#include "program.h"

SEC("?kprobe/security_task_getpgid")
int not_unless_named_kprobe(struct pt_regs *ctx)
{
	ran++;
	return 0;
}

SEC("tp/syscalls/sys_enter_getpgid")
int always(void *ctx)
{
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
