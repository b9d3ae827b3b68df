// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// LSM hooks, one of them sleepable.
#include "program.h"

SEC("lsm.s/file_open")
int BPF_PROG(opens, void *file, int ret)
{
	ran++;
	return ret;
}

SEC("lsm/task_getpgid")
int BPF_PROG(asks, void *task, int ret)
{
	ran++;
	return ret;
}

char _license[] SEC("license") = "GPL";
