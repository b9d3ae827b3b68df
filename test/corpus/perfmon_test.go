package corpus_test

import (
	"bytes"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/drop"
	"github.com/skep-dev/skep/test/harness/need"
)

// network are the types of programs that a namespace may have and that run without the guard.
var network = []ebpf.ProgramType{
	ebpf.XDP, ebpf.SchedCLS, ebpf.SchedACT, ebpf.SocketFilter, ebpf.CGroupSKB, ebpf.CGroupSock, ebpf.CGroupSockAddr, ebpf.CGroupSockopt,
	ebpf.CGroupSysctl, ebpf.CGroupDevice, ebpf.SockOps, ebpf.SkSKB, ebpf.SkMsg, ebpf.SkLookup, ebpf.SkReuseport, ebpf.Netfilter,
}

// TestNetworkProgramsWithoutPerfmon loads each network program of the corpus twice, with all capabilities and without
// CAP_PERFMON and CAP_SYS_ADMIN, and says which the verifier rejects then, and why. It holds nobody to the figures: they
// are of the kernel and the objects.
func TestNetworkProgramsWithoutPerfmon(t *testing.T) {
	need.Kernel(t)
	loaded, rejected := map[ebpf.ProgramType]int{}, map[ebpf.ProgramType]map[string][]string{}
	for _, o := range objects(t) {
		spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(o.body))
		if err != nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
			of := spec.Programs[name].Type
			if !slices.Contains(network, of) || loadAlone(spec, name) != nil {
				continue
			}
			loaded[of]++
			drop.Capabilities(t, func() { err = loadAlone(spec, name) }, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN)
			if err == nil {
				continue
			}
			if rejected[of] == nil {
				rejected[of] = map[string][]string{}
			}
			why := reason(err)
			rejected[of][why] = append(rejected[of][why], o.name+":"+name)
		}
	}
	if len(loaded) == 0 {
		t.Fatal("no network program was loaded")
	}
	for _, of := range network {
		lost := 0
		for _, programs := range rejected[of] {
			lost += len(programs)
		}
		t.Logf("SKEP-PERFMON %s: %d load, %d not without CAP_PERFMON", of, loaded[of], lost)
		for _, why := range slices.Sorted(maps.Keys(rejected[of])) {
			t.Logf("SKEP-PERFMON   %d %s: %s", len(rejected[of][why]), why, strings.Join(rejected[of][why], " "))
		}
	}
}

// loadAlone loads one program of an object, and its maps without contents.
func loadAlone(spec *ebpf.CollectionSpec, name string) error {
	one := spec.Copy()
	one.Programs = map[string]*ebpf.ProgramSpec{name: one.Programs[name]}
	for _, m := range one.Maps {
		m.Pinning = ebpf.PinNone
		if m.Type == ebpf.ProgramArray {
			m.Contents = nil
		}
		if m.MaxEntries == 0 {
			m.MaxEntries = openEntries
		}
	}
	c, err := ebpf.NewCollection(one)
	if err != nil {
		return err
	}
	c.Close()
	return nil
}

var number = regexp.MustCompile(`-?(0x[0-9a-f]+|\b\d+)`)

// reason is the line in which the verifier says why it rejects a program, without its figures; the error where
// there is none.
func reason(err error) string {
	rejection := new(ebpf.VerifierError)
	if !errors.As(err, &rejection) {
		return brief(err)
	}
	for _, line := range slices.Backward(rejection.Log) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "processed ") && !strings.HasPrefix(line, "verification time") && !strings.HasPrefix(line, "stack depth") {
			return number.ReplaceAllString(line, "N")
		}
	}
	return brief(rejection.Cause)
}
