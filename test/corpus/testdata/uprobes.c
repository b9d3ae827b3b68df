// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Probes of a binary by path, function and offset, sleepable.
#include "program.h"

SEC("uprobe//tmp/skep-corpus-binary:work_one")
int BPF_KPROBE(entry)
{
	ran++;
	return 0;
}

SEC("uretprobe//tmp/skep-corpus-binary:work_two")
int BPF_KRETPROBE(leave)
{
	ran++;
	return 0;
}

SEC("uprobe.s//tmp/skep-corpus-binary:work_one+0x1")
int BPF_KPROBE(inside)
{
	char byte;

	bpf_copy_from_user(&byte, sizeof(byte), (void *)PT_REGS_IP(ctx));
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
