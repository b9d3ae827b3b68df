// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// bpf_printk, with more arguments than the helper takes, and formats in .rodata.
#include "program.h"

SEC("tp/syscalls/sys_enter_getpgid")
int prints(void *ctx)
{
	char name[16];

	bpf_get_current_comm(name, sizeof(name));
	bpf_printk("one %d", 1);
	bpf_printk("many %d %d %d %d %s", 1, 2, 3, 4, name);
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
