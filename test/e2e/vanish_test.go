package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/test/harness/module"
)

// namespaceGoes deletes the namespace that the editor left an application in.
func (n *node) namespaceGoes() {
	n.sees(ours...)
	uid := n.field("{.metadata.uid}", ours...)
	id, stays := n.program(ours...), n.program(counter...)
	n.must("delete", "namespace", "team", "--timeout=3m")
	n.until("its program and pins to go", func() error {
		if p, err := ebpf.NewProgramFromID(id); err == nil {
			return errors.Join(p.Close(), fmt.Errorf("program %d is there", id))
		}
		if left, _ := filepath.Glob(filepath.Join(pins, uid)); len(left) > 0 {
			return fmt.Errorf("%v is there", left)
		}
		return nil
	})
	n.still(stays)
	n.sees(counter...)
}

// namespaceOfSkepGoes deletes all that the chart put into its namespace: agents,
// controllers, the key and what helm knew of the release. What is installed
// again has another key.
func (n *node) namespaceOfSkepGoes() {
	id, key := n.program(counter...), n.key()
	before, stop := n.counted(counter...), n.stream()
	n.must("delete", "namespace", "skep-system", "--timeout=3m")
	n.still(id)
	n.sees(counter...)
	n.helm("install", "skep", "charts/skep", "--create-namespace", "--values="+filepath.Join(module.Root(), "dist", "images.yaml"),
		"--set-string=registries.allowed={registry.example.com,private.example.com:8443}", "--wait")
	if n.key() == key {
		n.t.Fatal("the key came back, so that nothing is tested")
	}
	n.agentReady("")
	n.ready(counter...)
	n.still(id)
	// What the new key sealed is taken: another version takes over.
	n.sets("null")
	n.replaced(id)
	if sent, seen := stop(), n.counted(counter...)-before; seen < sent {
		n.t.Errorf("it counted %d of %d packets", seen, sent)
	}
}

// key is what seals intents, as its Secret has it.
func (n *node) key() string {
	n.t.Helper()
	return n.field("{.data}", namespaced("secret", "skep-seal")...)
}

// stream has the other machine send packets until it is stopped, and tell then
// how many there were.
func (n *node) stream() (stop func() uint64) {
	n.t.Helper()
	flag := n.path("streaming")
	n.file("streaming", "")
	var said bytes.Buffer
	cmd := exec.CommandContext(n.t.Context(), "ip", "netns", "exec", "outside", "bash", "-c",
		`for ((i = 0; ; i++)); do [[ -e `+flag+` ]] || break; echo >/dev/udp/`+address+`/9; sleep 0.01; done; echo $i`)
	cmd.Stdout = &said
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	return func() uint64 {
		err := errors.Join(os.Remove(flag), cmd.Wait())
		sent, wrong := strconv.ParseUint(strings.TrimSpace(said.String()), 10, 64)
		if err := errors.Join(err, wrong); err != nil {
			n.t.Fatal(err)
		}
		return sent
	}
}
