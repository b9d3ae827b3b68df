package e2e

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf/link"
)

// nriSocket is there where the runtime has NRI.
const nriSocket = "/run/nri/nri.sock"

// livesOf names how many pods come and go; livesBefore of them do before the first count.
const (
	livesOf     = "SKEP_E2E_LIVES"
	livesBefore = 20
	// together is how many there are at a time.
	together = 20
)

// lives has pods come and go that do everything once, at once. The agent has no more of anything
// afterwards than after the first of them.
func (c *team) lives(other *team) {
	c.t.Helper()
	all := 30
	if given := os.Getenv(livesOf); given != "" {
		var err error
		if all, err = strconv.Atoi(given); err != nil || all < livesBefore {
			c.t.Fatalf("%s is %q: give a number from %d on", livesOf, given, livesBefore)
		}
	}
	if exists(nriSocket) {
		c.seesTheFirst()
	}
	own, others, began := c.seen(), other.seen(), time.Now()
	c.live(0, livesBefore)
	before := c.holdings()
	for from := livesBefore; from < all; from += together {
		c.live(from, min(from+together, all))
	}
	took := time.Since(began)
	var after map[string]int
	c.until("the agent to hold no more than before", func() error {
		after = c.holdings()
		return grown(before, after)
	})
	c.t.Logf("%d pods lived in %v; after %d of them the agent had %v, and after all %v", all, took.Round(time.Second), livesBefore, before, after)
	for name, now := range c.seen() {
		c.t.Logf("%s of %s counted %d events of pods that did everything at once", name, c.namespace(), now-own[name])
	}
	for _, line := range c.startedEarly() {
		c.t.Logf("the agent: %s", line)
	}
	if now := other.seen(); !maps.Equal(now, others) {
		c.t.Errorf("the programs of %s counted %v before and %v after pods of another team lived", other.namespace(), others, now)
	}
}

// seesTheFirst has pods live one after the other, of which everything is counted that each does
// at once: what a pod does first.
func (c *team) seesTheFirst() {
	c.t.Helper()
	const pods = 5
	before, early := c.seen(), len(c.startedEarly())
	for i := range pods {
		c.live(i, i+1)
	}
	if told := c.startedEarly(); len(told) > early {
		// A busy machine attaches later than a container waits, and the agent says so.
		c.t.Logf("not all pods waited for their programs:\n%s", strings.Join(told[early:], "\n"))
		return
	}
	for name, want := range map[string]uint64{"calls": pods, "connects": pods, "probes": fewest * pods, "syscalls": pods} {
		if counted := c.seen()[name] - before[name]; counted != want {
			c.t.Errorf("%s of %s counted %d events, and pods made %d as the first thing that they did", name, c.namespace(), counted, want)
		}
	}
}

// startedEarly is what the agent said of containers that started before their programs were attached.
func (c *team) startedEarly() []string {
	c.t.Helper()
	return slices.DeleteFunc(strings.Split(c.must(namespaced("logs", "daemonset/skep-agent")...), "\n"), func(line string) bool {
		return !strings.Contains(line, "a container started before")
	})
}

// live makes pods, waits until all have done everything, and deletes them.
func (c *team) live(from, to int) {
	c.t.Helper()
	var pods strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&pods, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: life-%d, namespace: %s, labels: {app: life}}\nspec:\n"+
			"  restartPolicy: Never\n  terminationGracePeriodSeconds: 1\n  automountServiceAccountToken: false\n"+
			"  containers: [{name: life, image: 'registry.example.com/worker:1', args: [once]}]\n", i, c.namespace())
	}
	c.file("pods/lives.yaml", pods.String())
	c.must("create", "--filename", c.path("pods/lives.yaml"))
	c.until("the pods to have lived", func() error {
		phases := strings.Fields(c.field("{.items[*].status.phase}", "pods", "--selector=app=life", "--namespace="+c.namespace()))
		if done := len(phases) - len(slices.DeleteFunc(phases, func(phase string) bool { return phase == "Succeeded" })); done != to-from {
			return fmt.Errorf("%d of %d have", done, to-from)
		}
		return nil
	})
	c.must("delete", "--filename", c.path("pods/lives.yaml"), "--timeout=2m")
}

// holdings are what the agent has, and the node of it, by name.
func (c *team) holdings() map[string]int {
	c.t.Helper()
	agents := c.processes("skep-agent", "")
	if len(agents) != 1 {
		c.t.Fatalf("%d processes are the agent", len(agents))
	}
	process := fmt.Sprint("/proc/", agents[0])
	fds, err := os.ReadDir(process + "/fd")
	if err != nil {
		c.t.Fatal(err)
	}
	has := map[string]int{"descriptors": len(fds), "goroutines": c.goroutines(), "kB of memory": residentOf(process)}
	links := new(link.Iterator)
	defer links.Close()
	for links.Next() {
		has["links"]++
	}
	if err := links.Err(); err != nil {
		c.t.Fatal(err)
	}
	if err := filepath.WalkDir(pins, func(_ string, _ fs.DirEntry, err error) error { has["pins"]++; return err }); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.t.Fatal(err)
	}
	networks := map[string]bool{}
	found, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	open, _ := filepath.Glob(process + "/fd/*")
	for _, path := range append(found, open...) {
		if to, err := os.Readlink(path); err == nil && strings.HasPrefix(to, "net:") {
			networks[to] = true
		}
	}
	has["network namespaces"] = len(networks)
	return has
}

// residentOf is the memory of a process, in kB.
func residentOf(process string) int {
	body, _ := os.ReadFile(process + "/status")
	for line := range strings.Lines(string(body)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kilobytes, _ := strconv.Atoi(fields[1])
			return kilobytes
		}
	}
	return 0
}

var goroutines = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

// goroutines are those that the agent counts itself.
func (c *team) goroutines() int {
	c.t.Helper()
	request, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://127.0.0.1:9092/metrics", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	request.Close = true
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	found := goroutines.FindSubmatch(body)
	if err := errors.Join(err, answer.Body.Close()); err != nil || found == nil {
		c.t.Fatalf("the agent counts no goroutines: %s, %v", answer.Status, err)
	}
	n, _ := strconv.Atoi(string(found[1]))
	return n
}

// grown fails where there is more of something than before. Connections to the API server come
// and go, with a few goroutines, and Go gives memory back late.
func grown(before, after map[string]int) error {
	spare := map[string]int{"goroutines": 8, "descriptors": 2, "kB of memory": 16 << 10}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if after[name] > before[name]+spare[name] {
			return fmt.Errorf("it has %d %s, and had %d", after[name], name, before[name])
		}
	}
	return nil
}
