// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// LSM hooks of a cgroup: one for sockets that are made, and one that may set the error.
#include "program.h"

const volatile int refused = -1;

SEC("lsm_cgroup/socket_post_create")
int BPF_PROG(made, void *sock, int family)
{
	ran++;
	return 1;
}

SEC("lsm_cgroup/socket_create")
int BPF_PROG(makes, int family)
{
	ran++;
	if (family != refused)
		return 1;
	bpf_set_retval(-97);
	return 0;
}

char _license[] SEC("license") = "GPL";
