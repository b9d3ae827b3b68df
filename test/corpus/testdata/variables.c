// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Variables in every section that libbpf knows, and in sections of one's own.
#include "program.h"

const volatile int chosen = 5;
int zero;
int given = 3;
static volatile const char text[] = "text";
int own_data SEC(".data.own") = 4;
const volatile int own_constant SEC(".rodata.own") = 6;
struct {
	int a;
	char name[8];
} structure = { 1, "name" };

SEC("raw_tp/sys_enter")
int uses(void *ctx)
{
	zero += chosen + given + text[1] + own_data + own_constant + structure.a;
	ran++;
	return 0;
}

char _license[] SEC("license") = "GPL";
