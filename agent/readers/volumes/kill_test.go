package volumes_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/agent/readers/volumes"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
)

// mounting is the environment variable of a child that is an agent, and mounts and unmounts volumes until it is killed.
const mounting = "SKEP_TEST_MOUNTING"

// work is what such a child does.
type work struct {
	BPFFS, State, Mounter, Key string
	Requests                   []volumes.Request
}

// maybeChild ends the process where it is such a child.
func maybeChild() {
	if told := os.Getenv(mounting); told != "" {
		fmt.Fprintln(os.Stderr, runChild(told))
		os.Exit(1)
	}
}

func runChild(told string) error {
	var w work
	if err := json.Unmarshal([]byte(told), &w); err != nil {
		return err
	}
	key, err := hex.DecodeString(w.Key)
	if err != nil {
		return err
	}
	trust, err := intent.NewTrust(ed25519.PublicKey(key))
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Options{BPFFS: w.BPFFS, StateDir: w.State, Node: "node1", Mounter: w.Mounter, VolumePins: true, Trust: trust,
		Fetch: func(context.Context, string) ([]byte, error) { return nil, errors.New("all is there") }})
	if err != nil {
		return err
	}
	ctx := context.Background()
	go func() { _ = a.Run(ctx) }()
	go a.Volumes().Run(ctx)
	for {
		for _, r := range w.Requests {
			if err := a.Volumes().Mount(ctx, r); err != nil {
				return err
			}
			fmt.Println("mounted")
		}
		for _, r := range w.Requests {
			if err := a.Volumes().Unmount(ctx, r.At); err != nil {
				return err
			}
		}
	}
}

// TestNoMountLeaksOrVanishesWithAnAgent kills it fifty times, anywhere within mounts.
func TestNoMountLeaksOrVanishesWithAnAgent(t *testing.T) {
	n := newNodeWith(t, true)
	world.Must(t, n.Accept(n.agent, n.counter("xdp_count", to(v1alpha1.MapRead, "web"))))
	kept := n.mounts(n.ofCluster("web", "reader"))
	var before, after unix.Stat_t
	world.Must(t, unix.Stat(n.path(kept, "counts"), &before))
	n.stopAgent()
	w := work{BPFFS: n.BPFFS, State: filepath.Join(n.Dir, "state"), Mounter: n.socket, Key: hex.EncodeToString(n.Key.Public())}
	for range 3 {
		w.Requests = append(w.Requests, n.ofCluster("web", "reader"))
	}
	told, err := json.Marshal(w)
	world.Must(t, err)
	rounds, mounted := 50, 0
	if testing.Short() {
		rounds = 10
	}
	for range rounds {
		mounted += n.killed(string(told))
	}
	if mounted < rounds {
		t.Errorf("%d volumes were mounted in %d rounds: nothing was tested", mounted, rounds)
	}
	n.startAgent()
	world.Looks(t, n.agent)
	for _, r := range w.Requests {
		n.mounts(r)
		if open, _ := n.reads(r); open != "" || n.listing(r).Maps["counts"].Access == "" {
			t.Errorf("%s is not whole: %s, %+v", r.At, open, n.listing(r))
		}
		world.Must(t, n.agent.Volumes().Unmount(t.Context(), r.At))
		if !n.isEmpty(r) {
			t.Errorf("%s is mounted still", r.At)
		}
	}
	world.Must(t, unix.Stat(n.path(kept, "counts"), &after))
	if all := n.listing(kept); before.Ino != after.Ino || all.Generation != 1 {
		t.Errorf("the volume that was mounted before has another pin: %+v", all)
	}
	n.hasFiles(kept, ".maps counts counts.btf maps maps.json maps@write socket")
}

// killed has a child mount volumes, kills it some time after the first one, and returns how many it mounted.
func (n *node) killed(told string) int {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), mounting+"="+told)
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.StdoutPipe()
	world.Must(n.t, err)
	world.Must(n.t, cmd.Start())
	lines := bufio.NewScanner(out)
	mounted := 0
	for lines.Scan() {
		if mounted++; mounted == 1 {
			time.AfterFunc(time.Duration(mathrand.IntN(40_000))*time.Microsecond, cancel)
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); mounted == 0 || !errors.As(err, &exit) || exit.Exited() {
		n.t.Fatalf("the agent ended by itself, after %d volumes: %v: %s", mounted, err, failed.String())
	}
	return mounted
}

var _ volumes.Mounter = mounter.Client{}
