package demo

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/demo/story"
	"github.com/skep-dev/skep/examples"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/signing/sign"
)

//go:generate go run ../test/fixture/programs/compile objects objects

//go:embed objects/*.o
var objects embed.FS

// The ports of the packets: one the guard lets pass, one it drops.
const (
	openPort   = 8080
	closedPort = 6666
)

// rate is how many packets a second are sent.
const rate = 20_000

const counterCUE = `package demo

import "skep.dev/schemas"

counter: schemas.#ClusterBpfApplication & {
	metadata: name: "counter"
	spec: {
		bytecode: image: "%s"
		programs: [{
			name: "count_packets"
			attach: [{hook: "xdp", interfaces: names: ["` + receiver + `"], priority: 10}]
		}]
	}
}
`

const guardCUE = `package demo

import "skep.dev/schemas"

guard: schemas.#ClusterBpfApplication & {
	metadata: name: "guard"
	spec: {
		bytecode: image: "%s"
		variables: port: 6666
		programs: [{
			name: "guard_port"
			attach: [{interfaces: names: ["demo*"], interfaces: exclude: ["` + sender + `"], priority: 20}]
		}]
	}
}
`

const arrivalsCUE = `package demo

import "skep.dev/schemas"

arrivals: schemas.#ClusterBpfApplication & {
	metadata: name: "arrivals"
	spec: {
		bytecode: image: "%s"
		programs: [{name: "count_arrivals", attach: [{interfaces: names: ["` + receiver + `"]}]}]
	}
}
`

const badCUE = `package demo

import "skep.dev/schemas"

%[1]s: schemas.#ClusterBpfApplication & {
	metadata: name: "%[1]s"
	spec: {
		bytecode: image: "%[2]s"
		programs: [{name: "%[3]s"%[4]s}]
	}
}
`

// prop returns an object to pack: one of the examples' objects, or of the demo's own.
func prop(name string) ([]byte, error) {
	if name == "counter" {
		return examples.FS.ReadFile("xdp-counter/xdp_counter.bpf.o")
	}
	return objects.ReadFile("objects/" + name + ".o")
}

// altered is a prop with another licence of the same length in it, and so with
// a digest that nobody signed.
func altered(name, licence string) ([]byte, error) {
	body, err := prop(name)
	return bytes.Replace(body, []byte("Dual BSD/GPL"), []byte(licence), 1), err
}

// push packs an object as repository:tag of the registry and returns its
// reference.
func (s *show) push(ctx context.Context, body []byte, repository string) (image.Resolved, string, error) {
	facts, err := bytecode.Inspect(bytes.NewReader(body), bytecode.Options{})
	if err != nil {
		return image.Resolved{}, "", err
	}
	built, err := image.Build(body, image.BuildOptions{Labels: bytecode.Labels(facts)})
	if err != nil {
		return image.Resolved{}, "", err
	}
	ref := s.registry + "/bpf/" + repository
	r, err := s.client.Push(ctx, ref, built)
	return r, ref, err
}

// signed is push of a prop, and a signature.
func (s *show) signed(ctx context.Context, name, repository string) (string, error) {
	body, err := prop(name)
	if err != nil {
		return "", err
	}
	r, ref, err := s.push(ctx, body, repository)
	if err != nil {
		return "", err
	}
	if err := sign.Image(ctx, s.client, r, s.key, sign.Options{}); err != nil {
		return "", err
	}
	s.Good("packed and signed %s  %s", ref, s.Paint(story.Faint, story.Shorten(r.Digest)))
	return ref, nil
}

// deploy packs, signs, commits, and waits until all is loaded.
func (s *show) deploy(ctx context.Context) error {
	s.Act("Pack and sign eBPF objects, commit their definitions to git",
		"A program in the kernel can see and change everything. Only a commit and a known signature put one there.")
	files := map[string]string{}
	for _, p := range []struct {
		prop, cue string
		needsTCX  bool
	}{{"counter", counterCUE, false}, {"guard", guardCUE, false}, {"arrivals", arrivalsCUE, true}} {
		if p.needsTCX && !s.tcx {
			s.Say("left out: %s, since TCX came with Linux 6.6", p.prop)
			continue
		}
		ref, err := s.signed(ctx, p.prop, p.prop+":v1")
		if err != nil {
			return err
		}
		files[p.prop+".cue"] = fmt.Sprintf(p.cue, ref)
	}
	s.Quote(files["guard.cue"])
	began := time.Now()
	hash, err := s.repo.commit("Count packets, guard a port", files)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(files))
	for file := range files {
		names = append(names, strings.TrimSuffix(file, ".cue"))
	}
	err = s.until(ctx, "everything is loaded", func(st nodemode.Status) bool {
		for _, n := range names {
			if !ready(st, n) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	s.Good("commit %s: validated, verified, inspected, allowed, loaded, attached in %d ms", hash, time.Since(began).Milliseconds())
	s.acted++
	return nil
}

// count sends packets and reads the kernel's maps.
func (s *show) count(ctx context.Context) error {
	s.Act("Send real packets, read the real maps", "A firewall that is loaded and sees no packet protects nothing.")
	for _, batch := range []struct {
		n    int
		port uint16
	}{{8000, openPort}, {2000, closedPort}} {
		if err := s.wire.send(ctx, batch.n, batch.port, rate); err != nil {
			return err
		}
		s.sent += uint64(batch.n)
	}
	s.Say("sent %d packets to %s, 2000 of them to port %d", s.sent, receiver, closedPort)
	st := s.host.Status()
	counted, err := read(st, "counter", "counts")
	if err != nil {
		return err
	}
	s.tally("counter (XDP, priority 10) counted", counted, s.sent)
	dropped, err := read(st, "guard", ".bss")
	if err != nil {
		return err
	}
	s.tally("guard   (XDP, priority 20) dropped", dropped, 2000)
	if s.tcx {
		arrived, err := read(st, "arrivals", ".bss")
		if err != nil {
			return err
		}
		s.tally("arrivals (TCX, behind both) counted", arrived, s.sent-2000)
	}
	s.acted++
	return nil
}

// tally shows a count beside what it should be.
func (s *show) tally(what string, got, want uint64) {
	if got == want {
		s.Good("%s %d", what, got)
		return
	}
	s.Bad("%s %d, not %d: something else is on the wire, or a packet was missed", what, got, want)
}

// update commits a new version while packets are on the wire.
func (s *show) update(ctx context.Context) error {
	s.Act(fmt.Sprintf("Commit a new version while %d packets a second arrive", rate),
		"A firewall that is off during its own update lets packets through.")
	ref, err := s.signed(ctx, "counter_v2", "counter:v2")
	if err != nil {
		return err
	}
	before := find(s.host.Status(), "counter").Digest
	const n = 2 * rate
	done := make(chan error, 1)
	go func() { done <- s.wire.send(ctx, n, openPort, rate) }()
	hash, err := s.repo.commit("Count bytes as well", map[string]string{"counter.cue": fmt.Sprintf(counterCUE, ref)})
	if err != nil {
		return errors.Join(err, <-done)
	}
	err = s.until(ctx, "the new version runs", func(st nodemode.Status) bool {
		return ready(st, "counter") && find(st, "counter").Digest != before
	})
	swapped := len(done) == 0
	if err := errors.Join(err, <-done); err != nil {
		return err
	}
	s.sent += n
	if swapped {
		s.Good("commit %s: the program was swapped under its link, between two packets", hash)
	} else {
		s.Say("commit %s: the new version runs, but only since the packets had passed", hash)
	}
	counted, err := read(s.host.Status(), "counter", "counts")
	if err != nil {
		return err
	}
	s.Say("sent %d more; the counters kept their values", n)
	s.tally("counter has now counted", counted, s.sent)
	s.tally("packets missed during the update:", s.sent-min(counted, s.sent), 0)
	s.acted++
	return nil
}

// suspects are the applications that must not run, and what each of them is.
func suspects() []struct{ name, is string } {
	return []struct{ name, is string }{
		{"unsigned", "unsigned image unsigned:v1"},
		{"counter", "tampered image counter:v3, which has other bytes and the signature of counter:v2,"},
		{"rewrite", "dangerous image rewrite:v1, which is signed,"},
	}
}

// deny commits three definitions that must not reach the kernel.
func (s *show) deny(ctx context.Context) error {
	s.Act("Commit what must not run: an unsigned, a tampered and a dangerous image",
		"An attacker who can push to git and to the registry must not reach the kernel.")
	guard, err := altered("guard", "Dual MPL/GPL")
	if err != nil {
		return err
	}
	_, unsigned, err := s.push(ctx, guard, "unsigned:v1")
	if err != nil {
		return err
	}
	tampered, err := s.tamper(ctx)
	if err != nil {
		return err
	}
	dangerous, err := s.signed(ctx, "write_user", "rewrite:v1")
	if err != nil {
		return err
	}
	attach := `, attach: [{interfaces: names: ["` + receiver + `"]}]`
	hash, err := s.repo.commit("Try our luck", map[string]string{
		"unsigned.cue": fmt.Sprintf(badCUE, "unsigned", unsigned, "guard_port", attach),
		"rewrite.cue":  fmt.Sprintf(badCUE, "rewrite", dangerous, "rewrite", ""),
		"counter.cue":  fmt.Sprintf(counterCUE, tampered),
	})
	if err != nil {
		return err
	}
	err = s.until(ctx, "all three are denied", func(st nodemode.Status) bool {
		for _, suspect := range suspects() {
			if find(st, suspect.name).Condition(v1alpha1.ConditionAllowed).Status != metav1.ConditionFalse {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	s.Say("commit %s:", hash)
	st := s.host.Status()
	for _, suspect := range suspects() {
		a := find(st, suspect.name)
		for _, r := range a.Reasons {
			s.Bad("%s denied by %s", suspect.is, r.Rule)
			s.Say("  %s", r.Message)
			c := a.Condition(v1alpha1.ConditionVerified)
			if _, why, found := strings.Cut(c.Message, "; "); found && c.Status == metav1.ConditionFalse {
				s.Say("  %s", story.Shorten(why))
			}
			s.Say("  %s", s.Paint(story.Faint, "fix: "+r.Fix))
		}
	}
	counter := find(st, "counter")
	if len(counter.Programs) > 0 && counter.Programs[0].ID != 0 {
		s.Good("counter keeps running in its last allowed version, kernel id %d", counter.Programs[0].ID)
	}
	s.acted++
	return nil
}

// tamper changes the bytes of the signed version and puts the good version's
// signature beside the result, as an attacker with push rights could.
func (s *show) tamper(ctx context.Context) (string, error) {
	good, err := s.client.Resolve(ctx, s.registry+"/bpf/counter:v2")
	if err != nil {
		return "", err
	}
	body, err := altered("counter_v2", "Dual MIT/GPL")
	if err != nil {
		return "", err
	}
	bad, ref, err := s.push(ctx, body, "counter:v3")
	if err != nil {
		return "", err
	}
	tag := func(digest string) (name.Reference, error) {
		return name.ParseReference(s.registry + "/bpf/counter:" + strings.Replace(digest, ":", "-", 1) + ".sig")
	}
	from, err := tag(good.Digest)
	if err != nil {
		return "", err
	}
	to, err := tag(bad.Digest)
	if err != nil {
		return "", err
	}
	signature, err := remote.Image(from, remote.WithContext(ctx))
	if err != nil {
		return "", err
	}
	return ref, remote.Write(to, signature, remote.WithContext(ctx))
}

// revert takes every definition out and shows what is left.
func (s *show) revert(ctx context.Context) error {
	s.Act("Revert: the kernel is as it was", "A program that git no longer defines must not stay in the kernel.")
	files := map[string]string{}
	found, err := os.ReadDir(s.repo.dir)
	if err != nil {
		return err
	}
	for _, f := range found {
		if strings.HasSuffix(f.Name(), ".cue") {
			files[f.Name()] = ""
		}
	}
	hash, err := s.repo.commit("Revert all of it", files)
	if err != nil {
		return err
	}
	if err := s.until(ctx, "everything is unloaded", func(st nodemode.Status) bool { return len(st.Applications) == 0 }); err != nil {
		return err
	}
	left, err := s.managed(ctx)
	if err != nil {
		return err
	}
	if left != 0 {
		return fmt.Errorf("revert: %d programs of Skep's are still loaded", left)
	}
	s.Good("commit %s: no program, link or pin of Skep's is left", hash)
	s.acted++
	return nil
}

// managed counts Skep's programs in the kernel.
func (s *show) managed(ctx context.Context) (int, error) {
	all, err := inventory.List(ctx, inventory.Options{BPFFS: s.dir + "/bpf"})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, p := range all.Programs {
		if p.Managed {
			n++
		}
	}
	return n, nil
}

// next says what to type after the demo.
func (s *show) next() {
	fmt.Fprintln(s.Out)
	s.Say("Next, on this host: Install and Start in README.md. Then, in the same folder and in three terminals:")
	s.Say("  skep run --source . --signers ~/author.signer.yaml")
	s.Say("  skep ui             packets counted in your browser; skep top shows what each program costs")
	s.Say("  ping 127.0.0.1      packets, where nothing else uses lo")
}

// keep leaves everything as it is until ctx ends.
func (s *show) keep(ctx context.Context) error {
	s.Act("It is yours: look around, then end it with Ctrl-C", "Everything still runs in namespaces of its own, and goes when the demo ends.")
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	// make demo builds both.
	skep := filepath.Join(filepath.Dir(self), "skep")
	s.Say("in another terminal, as root:")
	for _, command := range []string{"status", "chain " + receiver, "explain counter", "inventory --bpffs " + s.dir + "/bpf/skep"} {
		if !strings.HasPrefix(command, "inventory") {
			command += " --state " + s.dir + "/state"
		}
		s.Say("  nsenter -t %d -m -n %s %s", os.Getpid(), skep, command)
	}
	s.Say("  the definitions: %s (commit there, and watch)", s.repo.dir)
	<-ctx.Done()
	return nil
}
