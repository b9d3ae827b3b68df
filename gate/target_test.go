package gate

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

func TestTheBinaryOfASectionIsThatOfTheAttachment(t *testing.T) {
	for section, want := range map[string]*v1alpha1.UserBinary{
		"uprobe//bin/bash:readline":              {Path: "/bin/bash", Symbol: "readline"},
		"uretprobe//bin/bash:readline+0x10":      {Path: "/bin/bash", Symbol: "readline", Offset: 16},
		"uprobe//bin/bash:readline+x":            nil,
		"uprobe/libc.so.6:malloc":                {Path: "libc.so.6", Symbol: "malloc"},
		"uprobe.multi//usr/lib/libssl.so:SSL_*":  {Path: "/usr/lib/libssl.so", Symbols: &v1alpha1.Symbols{Names: []string{"SSL_*"}}},
		"uretprobe.multi.s//usr/lib/libssl.so:f": {Path: "/usr/lib/libssl.so", Symbols: &v1alpha1.Symbols{Names: []string{"f"}}},
		"usdt//usr/bin/python3:python:line":      {Path: "/usr/bin/python3", USDT: &v1alpha1.USDT{Provider: "python", Name: "line"}},
		"uprobe.multi/lib/libssl.so:f":           nil,
	} {
		h, target, ok := hook.FromSection(section)
		if !ok {
			t.Fatalf("section %s implies no hook", section)
		}
		var a v1alpha1.Attachment
		fillTarget(&a, h, target)
		if diff := cmp.Diff(want, a.Binary); diff != "" {
			t.Errorf("%s (-want +got):\n%s", section, diff)
		}
	}
}

func TestTheFunctionOfASectionIsThatOfTheAttachment(t *testing.T) {
	for section, want := range map[string]*v1alpha1.Functions{
		"kprobe/tcp_connect+0x10":  {Names: []string{"tcp_connect"}, Offset: 16},
		"fentry/tcp_connect":       {Names: []string{"tcp_connect"}},
		"fentry/veth:veth_xmit":    {Names: []string{"veth_xmit"}, Module: "veth"},
		"fexit.s/veth:veth_xmit":   {Names: []string{"veth_xmit"}, Module: "veth"},
		"fmod_ret/veth:veth_xmit":  {Names: []string{"veth_xmit"}, Module: "veth"},
		"kprobe.multi/nf_*":        {Names: []string{"nf_*"}},
		"lsm/veth:not_of_a_module": {Names: []string{"veth:not_of_a_module"}},
	} {
		h, target, ok := hook.FromSection(section)
		if !ok {
			t.Fatalf("section %s implies no hook", section)
		}
		var a v1alpha1.Attachment
		fillTarget(&a, h, target)
		if diff := cmp.Diff(want, a.Functions); diff != "" {
			t.Errorf("%s (-want +got):\n%s", section, diff)
		}
	}
}
