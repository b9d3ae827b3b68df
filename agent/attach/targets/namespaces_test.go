package targets

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// known are two pods of which the application is for what it chooses.
func known(err error, chosen ...uint64) Namespaces {
	open := func() (*os.File, error) { return nil, os.ErrNotExist }
	return Namespaces{Err: err, All: []netns.Namespace{{ID: 7, In: "pod a/p", Open: open}, {ID: 8, In: "pod a/q", Open: open}},
		Choose: func(application v1alpha1.Identity, _ v1alpha1.Attachment) ([]uint64, bool, error) {
			return chosen, application.Name == "pods", nil
		}}
}

// failing are namespaces of which it is not known which ones are chosen.
func failing(n Namespaces, err error) Namespaces {
	choose := n.Choose
	n.Choose = func(application v1alpha1.Identity, at v1alpha1.Attachment) ([]uint64, bool, error) {
		ids, ok, _ := choose(application, at)
		return ids, ok, err
	}
	return n
}

// TestInterfacesAreThoseOfTheNamespacesThatAreChosen has eth0 in the agent's own namespace and in
// those of both pods, and net1 in that of q.
func TestInterfacesAreThoseOfTheNamespacesThatAreChosen(t *testing.T) {
	on := func(id uint64, index int, name string) plan.Interface {
		return plan.Interface{Device: plan.Device{NetnsID: id, Index: index}, Name: name, In: map[uint64]string{7: "pod a/p", 8: "pod a/q"}[id]}
	}
	lost, broken := errors.New("no answer"), errors.New("no memory")
	many, late := &PartialError{In: "pod a/q", What: devicesList, Read: 9, Limit: 9}, &PartialError{In: "pod a/q", What: devicesList, Read: 9}
	for sentence, c := range map[string]struct {
		application, name string
		known             Namespaces
		unread            map[uint64]error
		want              []string
		err               error
		says              string
	}{
		"the agent's own":                        {"node", "eth0", known(nil, 7), nil, []string{"eth0"}, nil, ""},
		"the agent's own, whatever is known":     {"node", "eth0", known(lost, 7), nil, []string{"eth0"}, nil, ""},
		"the agent's own, without others":        {"pods", "eth0", Namespaces{}, nil, []string{"eth0"}, nil, ""},
		"one of the agent's own that is missing": {"node", "net1", known(nil), nil, nil, ErrWaiting, "no interface of this node is chosen by names net1"},
		"those of one pod":                       {"pods", "eth0", known(nil, 7), nil, []string{"eth0 in pod a/p"}, nil, ""},
		"those of both, each once":               {"pods", "eth0", known(nil, 8, 7, 8), nil, []string{"eth0 in pod a/p", "eth0 in pod a/q"}, nil, ""},
		"those of the one that has it": {
			"pods", "net1", known(nil, 7, 8), nil, []string{"net1 in pod a/q"}, ErrWaiting, "no interface of pod a/p is chosen by names net1",
		},
		"those of a pod that is gone":            {"pods", "eth0", known(nil, 9), nil, nil, nil, ""},
		"those of no pod":                        {"pods", "eth0", known(nil), nil, nil, nil, ""},
		"what runs, where pods are not known":    {"pods", "eth0", known(lost), nil, []string{"net1 in pod a/q"}, ErrNotKnown, "no answer"},
		"what runs, where it is not known which": {"pods", "eth0", failing(known(nil), lost), nil, []string{"net1 in pod a/q"}, ErrNotKnown, "no answer"},
		"a name of a pod with too many":          {"pods", "eth0", known(nil, 8), map[uint64]error{8: many}, []string{"eth0 in pod a/q"}, nil, ""},
		"a pattern of a pod with too many":       {"pods", "net*", known(nil, 7), map[uint64]error{7: many}, nil, nil, ""},
		"a name of a pod that is read late":      {"pods", "eth0", known(nil, 8), map[uint64]error{8: late}, []string{"eth0 in pod a/q"}, nil, ""},
		"a pattern of a pod that is read late": {
			"pods", "net*", known(nil, 8), map[uint64]error{8: late}, []string{"net1 in pod a/q"}, ErrWaiting, "devices within 100ms; they are read again",
		},
		"those of a pod that cannot be read": {
			"pods", "net1", known(nil, 7), map[uint64]error{7: broken}, nil, ErrWaiting, "look into the network namespace of pod a/p: no memory",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			l := newLooking(t)
			l.host.Namespaces = netns.NewTable()
			l.host.Namespaces.Renew(c.known.All, c.known.Err)
			r := l.next(nil, 0)
			r.namespaces, r.unread, r.there = c.known, c.unread, map[uint64]bool{7: true, 8: true}
			r.interfaces = []plan.Interface{on(0, 2, "eth0"), on(7, 2, "eth0"), on(8, 2, "eth0"), on(8, 3, "net1")}
			r.running.On = func(application v1alpha1.Identity, program, hook string) []plan.Device {
				if application.Name != "pods" || program != "f" || hook != "xdp" {
					t.Errorf("asked for %s, %s, %s", application, program, hook)
				}
				return []plan.Device{{NetnsID: 8, Index: 3}}
			}
			asked := v1alpha1.Attachment{Interfaces: &v1alpha1.Interfaces{Names: []string{c.name}}}
			all, err := r.OnInterfaces(plan.Attachment{Application: v1alpha1.Identity{Name: c.application}, Program: "f", Hook: "xdp"}, asked)
			var got []string
			for _, a := range all {
				got = append(got, a.Target.String())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("targets (-want +got):\n%s", diff)
			}
			if isTooMany := len(r.TooMany(v1alpha1.Identity{Name: c.application}, asked)) > 0; isTooMany != (c.name == "net*" && errors.Is(c.unread[7], many)) {
				t.Errorf("it has too many: %v", isTooMany)
			}
			if !errors.Is(err, c.err) || c.err == nil && err != nil || c.says != "" && !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("OnInterfaces fails with %v", err)
			}
		})
	}
}

// TestANamespaceThatCannotBeReadIsAsItWas: one that is gone has no device, and of one that is not
// known those count that were seen last or that something runs on.
func TestANamespaceThatCannotBeReadIsAsItWas(t *testing.T) {
	l := newLooking(t)
	l.host.Namespaces = netns.NewTable()
	seen := plan.Interface{Device: plan.Device{NetnsID: 7, Index: 2}, Name: "eth0", In: "pod a/p"}
	now := Running{UIDs: map[plan.Device][]string{{NetnsID: 7, Index: 2}: {"a"}, {NetnsID: 7, Index: 3}: {"a"}, {NetnsID: 7, Index: 4}: {"b"}},
		Targets: map[plan.Device]plan.Target{{NetnsID: 7, Index: 3}: {Interface: "net1", In: "pod a/was"}}}
	look := func(known Namespaces) []plan.Interface {
		t.Helper()
		l.seen[7] = &reading{devices: []plan.Interface{seen}}
		r := l.next(nil, 0)
		all, err := r.Look(known, nil, false, now)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Present()) > 0 {
			t.Errorf("present: %v", r.Present())
		}
		return plan.InterfacesIn(7, all)
	}
	if got := look(known(nil)); len(got) > 0 {
		t.Errorf("a namespace that is gone has %v", got)
	}
	unknown := Namespaces{Err: errors.New("no answer")}
	want := []plan.Interface{seen, {Device: plan.Device{NetnsID: 7, Index: 3}, Name: "net1", In: "pod a/was"}, {
		Device: plan.Device{NetnsID: 7, Index: 4}, Name: "#4",
	}}
	if diff := cmp.Diff(want, look(unknown)); diff != "" {
		t.Errorf("interfaces of one that is not known (-want +got):\n%s", diff)
	}
}

// TestANamespaceThatCouldNotBeReadIsTriedAgain opens one with an error, which was read before and
// where something runs. Each reconcile but the first is incremental, and finds the pod unchanged.
func TestANamespaceThatCouldNotBeReadIsTriedAgain(t *testing.T) {
	alone(t, func() error {
		here, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer func() { _ = here.Close() }()
		var st unix.Stat_t
		if err := unix.Fstat(int(here.Fd()), &st); err != nil {
			return err
		}
		l, broken, opened := newLooking(t), errors.New("no memory"), 0
		l.host.Namespaces = netns.NewTable()
		pods := Namespaces{All: []netns.Namespace{{ID: st.Ino, In: "pod a/p", Open: func() (*os.File, error) {
			if opened++; broken != nil {
				return nil, broken
			}
			return os.Open(fmt.Sprintf("/proc/self/fd/%d", here.Fd()))
		}}}}
		on := plan.Device{NetnsID: st.Ino, Index: 1}
		now, at := Running{UIDs: map[plan.Device][]string{on: {"a"}}}, time.Now()
		l.seen[st.Ino] = &reading{devices: []plan.Interface{{Device: on, Name: "lo"}}, due: true}
		look := func(after time.Duration) (fails error) {
			t.Helper()
			at = at.Add(after)
			r := l.Begin(at, Pods{})
			r.unchangedNetns = map[uint64]bool{st.Ino: true}
			// Not from the thread of the test, whose own namespace it is.
			done := make(chan error)
			go func() { _, err := r.Look(pods, nil, false, now); done <- err }()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			l.host.Namespaces.Close()
			return r.unread[st.Ino]
		}
		if err := look(0); !errors.Is(err, broken) || opened != 1 || l.IsDue(at) {
			t.Errorf("at first: %v after %d attempts", err, opened)
		}
		if err := look(time.Second / 2); !errors.Is(err, broken) || opened != 1 {
			t.Errorf("soon after: %v after %d attempts", err, opened)
		}
		if !l.IsDue(at.Add(time.Second)) {
			t.Error("it is not due again after a second")
		}
		if err := look(time.Second); !errors.Is(err, broken) || opened != 2 || l.IsDue(at.Add(time.Second)) {
			t.Errorf("a second later: %v after %d attempts, and it is due again a second later: %v", err, opened, l.IsDue(at.Add(time.Second)))
		}
		broken = nil
		if err := look(time.Minute); err != nil || opened != 3 || l.IsDue(at.Add(time.Hour)) {
			t.Errorf("when it can be read: %v after %d attempts", err, opened)
		}
		if err := look(time.Minute); err != nil || opened != 3 {
			t.Errorf("after it was read: %v after %d attempts", err, opened)
		}
		return nil
	})
}

// TestANamespaceThatWasNotReadInTimeIsLeftToTheNextReconcile has time for one.
func TestANamespaceThatWasNotReadInTimeIsLeftToTheNextReconcile(t *testing.T) {
	l := newLooking(t)
	l.host.Namespaces = netns.NewTable()
	unchanged := map[uint64]bool{7: true}
	now := Running{UIDs: map[plan.Device][]string{{NetnsID: 7, Index: 2}: {"a"}}}
	eth0 := []plan.Interface{{Device: plan.Device{NetnsID: 7, Index: 2}, Name: "eth0"}}
	for sentence, c := range map[string]struct {
		last      *reading
		unchanged map[uint64]bool
		anew      bool
		is        bool
		// stale: the next full reconcile waits for it.
		stale bool
	}{
		"a new one":                                    {nil, unchanged, false, true, false},
		"one whose pod changed":                        {&reading{devices: eth0}, nil, false, true, false},
		"one that was left before":                     {&reading{devices: eth0, due: true}, unchanged, false, true, false},
		"one that is unchanged and runs":               {&reading{devices: eth0}, unchanged, false, false, false},
		"one that is unchanged, and runs none":         {&reading{}, unchanged, false, false, false},
		"one that could not be read, unchanged":        {&reading{err: errLater}, unchanged, false, false, false},
		"a new one, in a full one":                     {nil, unchanged, true, true, false},
		"one whose pod changed, in a full one":         {&reading{devices: eth0}, nil, true, true, false},
		"one that runs, in a full one":                 {&reading{devices: eth0}, unchanged, true, true, true},
		"one that runs none, in a full one":            {&reading{}, unchanged, true, true, true},
		"one that could not be read, in a full one":    {&reading{err: errLater}, unchanged, true, false, false},
		"one that was read in it already, and runs":    {&reading{devices: eth0, full: 1}, unchanged, true, false, false},
		"one that was read in it already, and is idle": {&reading{full: 1}, unchanged, true, false, false},
	} {
		l.full, l.isWhole = 0, true
		r := l.Begin(time.Now(), Pods{Anew: c.anew})
		r.unchangedNetns, r.there, r.unread = c.unchanged, map[uint64]bool{}, map[uint64]error{}
		if delete(l.seen, 7); c.last != nil {
			l.seen[7] = c.last
		}
		if got := r.lookInto(7, true, sought{}, now); len(got) != 1 {
			t.Errorf("%s: has the devices %v, want the one where something runs", sentence, got)
		}
		if r.IsLeft() != c.is {
			t.Errorf("%s: is left to the next reconcile: %v, want %v", sentence, r.IsLeft(), c.is)
		}
		if r.End(); l.isWhole == c.stale {
			t.Errorf("%s: the next full reconcile waits for it: %v, want %v", sentence, !l.isWhole, c.stale)
		}
	}
}

// TestPodsThatStartLeaveTimeForWhatIsStale has a pod in each reconcile whose namespace is new, comes first, and takes long to read.
func TestPodsThatStartLeaveTimeForWhatIsStale(t *testing.T) {
	l, read := newLooking(t), map[uint64]int{}
	l.host.Namespaces = netns.NewTable()
	opens := func(id uint64, takes time.Duration) netns.Namespace {
		return netns.Namespace{ID: id, In: fmt.Sprint("pod a/", id), Open: func() (*os.File, error) {
			read[id]++
			<-time.After(takes)
			return nil, errors.New("no memory")
		}}
	}
	known := Namespaces{All: []netns.Namespace{opens(5, 2*anewBudget), opens(7, 0)}}
	eth0 := plan.Interface{Device: plan.Device{NetnsID: 7, Index: 2}, Name: "eth0"}
	now := Running{UIDs: map[plan.Device][]string{{NetnsID: 5, Index: 2}: {"a"}, eth0.Device: {"b"}}}
	l.seen[7] = &reading{devices: []plan.Interface{eth0}}
	r := l.Begin(time.Now(), Pods{Anew: true, IsHurried: func() bool { return true }})
	r.unchangedNetns = map[uint64]bool{7: true}
	if _, err := r.Look(known, nil, false, now); err != nil {
		t.Fatal(err)
	}
	if read[5] != 1 || read[7] != 1 {
		t.Errorf("the namespace that is new is read %d times, and the stale one %d times; want 1 and 1", read[5], read[7])
	}
}
