package node_test

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/node"
)

// TestWhatFailedOfAnotherDelaysNoRetryOnAnInterface has one application fail for so
// long that it is tried seldom, and another tenant's come to the same interface.
func TestWhatFailedOfAnotherDelaysNoRetryOnAnInterface(t *testing.T) {
	needKernel(t)
	w := newWorld(t)
	veth(t, "cn0", "cn1")
	foreign, err := link.AttachXDP(link.XDPOptions{Program: foreignProgram(t, ebpf.XDP), Interface: index(t, "cn0")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Close() }()
	now := newClock()
	o := w.options()
	o.Clock, o.BackOff = now.Now, node.BackOff{First: time.Second, Most: time.Hour}
	a := w.idle(o)
	first := tenant(w.xdp("xdp_count", "count_packets", "cn0"), "area", "first", 1, 1)
	second := tenant(w.xdp("xdp_pass", "xdp_pass", "cn0"), "home", "second", 2, 2)
	if err := a.Accept(w.seal(first)); err != nil {
		t.Fatal(err)
	}
	until(t, "the first one to fail", time.Minute, func() bool { a.Reconcile(t.Context()); return errorOf(a, first) != "" })
	for range 15 {
		now.forward(2 * time.Hour)
		a.Reconcile(t.Context())
	}
	if err := a.Accept(w.seal(second)); err != nil {
		t.Fatal(err)
	}
	until(t, "the second one to fail", time.Minute, func() bool { a.Reconcile(t.Context()); return errorOf(a, second) != "" })
	if err := foreign.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		a.Reconcile(t.Context())
	}
	if at(a, second) != "" {
		t.Error("it was tried again at once")
	}
	now.forward(2 * time.Second)
	until(t, "both to be in", time.Minute, func() bool { a.Reconcile(t.Context()); return isIn(a, first) && isIn(a, second) })
}
