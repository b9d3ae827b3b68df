package clsact

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/recommended"
)

// flooded is how many filters a pod has that makes too many.
const flooded = 20_000

// noted are the qdiscs that Skep made.
type noted map[plan.Device]bool

func (n noted) Noted() (all []plan.Device, err error) {
	for d := range n {
		all = append(all, d)
	}
	return all, nil
}

func (n noted) Note(d plan.Device) error { n[d] = true; return nil }

func (n noted) Forget(d plan.Device) error { delete(n, d); return nil }

// floodable is a pod with the devices eth0 and eth1, and what knows it.
type floodable struct {
	t     testing.TB
	pods  *netns.Table
	notes noted
	// programs are those of Skep's, the first two of an application, by id.
	programs []*ebpf.Program
	ids      []ebpf.ProgramID
	other    *ebpf.Program
	eth0     plan.Device
	now      time.Time
}

func program(t testing.TB) (*ebpf.Program, ebpf.ProgramID) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return p, id
}

func newFloodable(t testing.TB) *floodable {
	t.Helper()
	need.Kernel(t)
	f := &floodable{t: t, pods: netns.NewTable(), notes: noted{}, now: time.Unix(1, 0)}
	for range 2 {
		p, id := program(t)
		f.programs, f.ids = append(f.programs, p), append(f.ids, id)
	}
	f.other, _ = program(t)
	// The thread of the test is in the pod, and has a table for a thread that is not.
	leaks.NetworkNamespace(t)
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.pods.Renew([]netns.Namespace{{ID: st.Ino, In: "pod team-a/web", Open: func() (*os.File, error) {
			fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			return os.NewFile(uintptr(fd), fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd())), err
		}}}, nil)
	}()
	<-done
	t.Cleanup(f.pods.Close)
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth1"}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	f.eth0 = plan.Device{NetnsID: st.Ino, Index: link.Index}
	return f
}

// table is that of an agent that starts.
func (f *floodable) table() *Table {
	table := New(f.notes)
	table.Namespaces, table.Clock = f.pods, func() time.Time { return f.now }
	table.Owner = func(id ebpf.ProgramID) (Owner, bool) {
		if slices.Contains(f.ids, id) {
			return Owner{"uid", "one"}, true
		}
		return Owner{}, false
	}
	return table
}

// look begins a look in which the pod has its turn, however long the machine took in the one before.
func (f *floodable) look(table *Table) {
	table.Look()
	f.now = f.now.Add(time.Minute)
	table.Look()
}

// request is for a filter on eth0 that runs a program of Skep's.
func (f *floodable) request(hook string, priority int32) Request {
	p, err := f.programs[0].Clone()
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = p.Close() })
	return Request{Hook: hook, Device: f.eth0, Priority: priority, Owner: Owner{"uid", "one"}, Name: "one", Program: p}
}

// attach makes a filter.
func (f *floodable) attach(table *Table, hook string) *Filter {
	f.t.Helper()
	one, err := table.Attach(f.request(hook, 500))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = one.Close() })
	return one
}

// restore returns the filter as an agent knows it that starts.
func (f *floodable) restore(table *Table, hook string) *Filter {
	one, _ := table.Restore(f.request(hook, 500))
	return one
}

// add makes a filter at a pref of a side of eth0; the kernel chooses the handle 0.
func (f *floodable) add(s Side, pref uint16, handle uint32, p *ebpf.Program) {
	f.t.Helper()
	one := filter(s, pref, handle)
	one.Fd, one.Name = p.FD(), "many"
	if err := netlink.FilterAdd(one); err != nil {
		f.t.Fatal(err)
	}
}

// flood makes very many filters on both sides of eth0: behind each other at some prefs, and before
// those of Skep's.
func (f *floodable) flood() {
	f.t.Helper()
	for i := range flooded {
		f.add(Side{f.eth0, i%2 == 1}, uint16(1+i/2%100), 0, f.other)
	}
}

// isThere reports whether a side has a filter at a pref with the handle of Skep's.
func (f *floodable) isThere(s Side, pref uint16) (is bool) {
	f.t.Helper()
	table := f.table()
	all, err := table.lookUp(s, []place{{pref: pref, handle: handle}})
	if err != nil {
		f.t.Fatal(err)
	}
	return len(all) > 0
}

func hasFacts(t *testing.T, when string, f *Filter, want Facts) {
	t.Helper()
	if got, err := f.Facts(); err != nil || got != want {
		t.Errorf("%s, the filter is %+v, not %+v: %v", when, got, want, err)
	}
}

// isCut holds that an error is of a pod with too many filters, which it names with the fix. A busy machine
// may not have read so many in time.
func isCut(t *testing.T, when string, err error) {
	t.Helper()
	const want = "read ingress filters of eth0 in pod team-a/web: there are more than 2048, which is the limit of what is read; " +
		"delete those that the pod does not need: `nsenter --net="
	cut := new(PartialError)
	if !errors.As(err, &cut) || cut.Limit != 0 && !strings.Contains(err.Error(), want) {
		t.Fatalf("%s: %v, not %q", when, err, want)
	}
	if cut.Limit != 0 && when == "an attachment" {
		recommended.Run(t, err.Error(), "nsenter --net=", "tc filter show")
	}
}

// TestAFloodHidesNoFilter has a pod make very many filters where one of Skep's runs. That one is looked
// up, updated, missed and deleted as before; one more is refused.
func TestAFloodHidesNoFilter(t *testing.T) {
	for _, hook := range []string{"tc/ingress", "tc/egress"} {
		t.Run(hook, func(t *testing.T) {
			f := newFloodable(t)
			table := f.table()
			one := f.attach(table, hook)
			f.flood()
			f.look(table)
			hasFacts(t, "in a flood", one, Facts{f.ids[0], 17000, 1, 1})
			if err := one.Update(f.programs[1]); err != nil {
				t.Fatal(err)
			}
			f.look(table)
			hasFacts(t, "after an update", one, Facts{f.ids[1], 17000, 1, 1})
			if table.side(one.side).cut != nil {
				t.Error("a list was read")
			}
			if err := netlink.FilterDel(filter(one.side, 17000, handle)); err != nil {
				t.Fatal(err)
			}
			f.look(table)
			hasFacts(t, "after others deleted it", one, Facts{})
			f.add(one.side, 17000, handle, f.programs[1])
			table.side(one.side).places[place{pref: 17000, handle: handle}] = true
			f.look(table)
			hasFacts(t, "after it came back", one, Facts{f.ids[1], 17000, 1, 1})
			if err := one.Detach(); err != nil {
				t.Error(err)
			}
			if f.isThere(one.side, 17000) {
				t.Error("the filter is there still")
			}
		})
	}
}

// TestAFilterThatMayBeHiddenIsNoneThatIsGone has an agent start that finds a flood. It finds the filter of
// its own that is where its priority has it at once, and a copy in some looks, and deletes either.
func TestAFilterThatMayBeHiddenIsNoneThatIsGone(t *testing.T) {
	f := newFloodable(t)
	first := f.attach(f.table(), "tc/ingress")
	f.flood()
	f.add(first.side, 9000, handle, f.programs[0])
	table := f.table()
	one := f.restore(table, "tc/ingress")
	looks := 0
	for got, err := one.Facts(); got.Copies == 0; got, err = one.Facts() {
		// A busy machine may take all time for the list.
		if looks++; !errors.As(err, new(*PartialError)) || looks > 100 {
			t.Fatalf("after %d looks, the filter is %+v: %v", looks, got, err)
		}
		f.look(table)
	}
	for err := error(&PartialError{}); err != nil; looks++ {
		if err = one.Detach(); err != nil && !errors.As(err, new(*PartialError)) || looks > 1000 {
			t.Fatal(err)
		}
		if f.isThere(one.side, 17000) {
			t.Fatal("the filter is there after it was found")
		}
		f.look(table)
	}
	if f.isThere(one.side, 9000) {
		t.Errorf("after %d looks, the copy is there and taken for gone", looks)
	}
	if !f.notes[f.eth0] {
		t.Error("the note of the qdisc is gone, which may have filters of Skep's")
	}
}

// TestAFloodIsReadAgainEverMoreSlowly: beyond the bound an attachment fails, and costs nothing until the
// pod's next turn. Filters beside it stay.
func TestAFloodIsReadAgainEverMoreSlowly(t *testing.T) {
	f := newFloodable(t)
	table := f.table()
	one := f.attach(table, "tc/ingress")
	f.flood()
	attach := func() error {
		another := f.request("tcx/ingress", 1)
		_, err := table.Attach(another)
		return err
	}
	var lists []int
	for range 60 {
		table.Look()
		isCut(t, "an attachment", attach())
		isCut(t, "the same in one look", attach())
		lists = append(lists, table.side(one.side).listedIn)
		hasFacts(t, "beside it", one, Facts{f.ids[0], 17000, 1, 1})
		f.now = f.now.Add(time.Second)
	}
	reads := map[int]bool{}
	for _, look := range lists {
		reads[look] = true
	}
	if n := len(reads); n < 4 || n > 8 {
		t.Errorf("in a minute, the list was read in %d of 60 looks", n)
	}
	for pref := range uint16(100) {
		for _, egress := range []bool{false, true} {
			s := Side{f.eth0, egress}
			if err := netlink.FilterDel(&netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{LinkIndex: s.Device.Index, Parent: s.parent(), Priority: pref + 1, Protocol: unix.ETH_P_ALL},
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.look(table)
	if err := attach(); err != nil {
		t.Errorf("after the flood: %v", err)
	}
}

// TestASweepFindsWhatAFloodHides has filters that a killed agent left where a pod made very many others.
func TestASweepFindsWhatAFloodHides(t *testing.T) {
	f := newFloodable(t)
	first := f.attach(f.table(), "tc/ingress")
	f.flood()
	egress := Side{f.eth0, true}
	f.add(egress, 30000, handle, f.programs[1])
	table := f.table()
	sweeps := 0
	for err := error(&PartialError{}); err != nil; sweeps++ {
		err = table.Sweep(f.eth0.NetnsID, func(s Side, _ Owner) bool { return s == first.side })
		if err != nil && !errors.As(err, new(*PartialError)) || sweeps > 1000 {
			t.Fatal(err)
		}
		f.look(table)
	}
	if f.isThere(egress, 30000) || !f.isThere(first.side, 17000) {
		t.Errorf("after %d sweeps, what is left is there: %v; what is kept: %v", sweeps, f.isThere(egress, 30000), f.isThere(first.side, 17000))
	}
}

// TestSharesOfTime has pods in looks of a second each.
func TestSharesOfTime(t *testing.T) {
	now := time.Unix(1, 0)
	table := New(nil)
	table.Clock = func() time.Time { return now }
	device := func(id uint64) plan.Device { return plan.Device{NetnsID: id, Index: 2} }
	spend := func(id uint64, took time.Duration) {
		p := table.pod(id)
		p.left, table.left = p.left-took, table.left-took
		p.isLate = p.isLate || p.left <= 0
	}
	type share struct {
		Left    time.Duration
		HasTurn bool
	}
	are := func(when string, want map[uint64]share) {
		t.Helper()
		got := map[uint64]share{}
		for id := range want {
			got[id] = share{table.timeLeft(device(id)), table.hasTurn(device(id))}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	are("at first", map[uint64]share{1: {podBudget, true}, 0: {patience, true}})
	spend(1, podBudget/4)
	are("after some work", map[uint64]share{1: {podBudget * 3 / 4, true}, 2: {podBudget, true}})
	for id := range uint64(5) {
		spend(id+1, podBudget)
	}
	are("after others took all time", map[uint64]share{5: {0, false}, 6: {0, false}, 0: {patience, true}})
	table.Look()
	are("in the next look, who had none is first", map[uint64]share{5: {0, false}, 6: {podBudget, true}})
	now = now.Add(2 * time.Second)
	table.Look()
	are("after a while, all have a turn", map[uint64]share{5: {podBudget, true}, 6: {podBudget, true}})
	table.pod(5).isCut = true
	table.Look()
	now = now.Add(time.Second)
	table.Look()
	are("who has too many waits longer, and is looked up meanwhile", map[uint64]share{5: {podBudget, false}, 6: {podBudget, true}})
	now = now.Add(2 * time.Second)
	table.Look()
	table.Look()
	if len(table.pods) > 0 {
		t.Errorf("shares are remembered of %d pods, which had good turns since", len(table.pods))
	}
}

// TestWhatWasSeenLastCountsWhileThereIsNoTime: a pod whose look-ups take too long is not looked up.
func TestWhatWasSeenLastCountsWhileThereIsNoTime(t *testing.T) {
	f := newFloodable(t)
	table := f.table()
	one := f.attach(table, "tc/ingress")
	want := Facts{f.ids[0], 17000, 1, 1}
	f.look(table)
	hasFacts(t, "at first", one, want)
	table.pod(f.eth0.NetnsID).isLate = true
	table.Look()
	if err := netlink.FilterDel(filter(one.side, 17000, handle)); err != nil {
		t.Fatal(err)
	}
	hasFacts(t, "with no time", one, want)
	if err := one.Update(f.programs[1]); !errors.Is(err, unix.ENOLINK) {
		t.Errorf("an update, which looks nevertheless: %v", err)
	}
	f.look(table)
	hasFacts(t, "with time", one, Facts{})
}

// BenchmarkALookAtAFloodedPod compares what a look costs with a list of all filters.
func BenchmarkALookAtAFloodedPod(b *testing.B) {
	f := newFloodable(b)
	table := f.table()
	one := f.attach(table, "tc/ingress")
	f.flood()
	b.Run("look up", func(b *testing.B) {
		for b.Loop() {
			table.Look()
			if facts, err := one.Facts(); err != nil || facts.Copies != 1 {
				b.Fatal(facts, err)
			}
		}
	})
	b.Run("list", func(b *testing.B) {
		table.Unhurried = true
		for b.Loop() {
			if _, err := table.read(one.side); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestAPodWithTooMuchIsListedByTheCommandOfTheMessage makes more than is read.
func TestAPodWithTooMuchIsListedByTheCommandOfTheMessage(t *testing.T) {
	for want, c := range map[string]struct {
		command       string
		pairs, queues int
		read          func(f *floodable, table *Table) error
	}{
		"read interfaces in pod team-a/web: there are more than 1024": {"ip link show", maxDevices / 2, 1, func(f *floodable, table *Table) error {
			return table.Sweep(f.eth0.NetnsID, func(Side, Owner) bool { return true })
		}},
		"read qdiscs of eth0 in pod team-a/web: there are more than 4096": {"tc qdisc show", 2, maxQdiscs / 2, func(f *floodable, table *Table) error {
			_, err := table.kindOf(f.eth0)
			return err
		}},
	} {
		f := newFloodable(t)
		for i := range c.pairs {
			f.pair(i, c.queues)
		}
		table, err := f.table(), error(nil)
		await.True(t, "a look that a busy machine does not cut", time.Minute, func() bool {
			f.look(table)
			err = c.read(f, table)
			cut := new(PartialError)
			return !errors.As(err, &cut) || cut.Limit != 0
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%v, not %q", err, want)
		}
		recommended.Run(t, err.Error(), c.command)
	}
}

// pair makes two devices more, of which one has a qdisc for each queue if there are many.
func (f *floodable) pair(number, queues int) {
	f.t.Helper()
	one := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("many", number), NumTxQueues: queues}, PeerName: fmt.Sprint("other", number)}
	err := netlink.LinkAdd(one)
	if err == nil && queues > 1 {
		at := netlink.QdiscAttrs{LinkIndex: one.Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}
		err = errors.Join(netlink.LinkSetUp(one), netlink.QdiscAdd(&netlink.GenericQdisc{QdiscType: "mq", QdiscAttrs: at}))
	}
	if err != nil {
		f.t.Fatal(err)
	}
}
