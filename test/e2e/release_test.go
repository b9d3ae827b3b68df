package e2e

import (
	"crypto"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/skep-dev/skep/test/harness/module"
)

// releases is where the node's releases are pushed to.
const releases = "registry.example.com/releases"

// releaseEnv leaves out what follows where it is no.
const releaseEnv = "SKEP_E2E_RELEASE"

// releasing makes two releases, and does what docs/install.md says with each: nothing of the
// repository is needed but what the registry has.
func (n *node) releasing() {
	if os.Getenv(releaseEnv) == "no" {
		n.t.Skip("SKIPPED: " + releaseEnv + "=no leaves out the releases, whose binaries take minutes to compile")
	}
	n.commit()
	n.run("skep", "key", "generate", "--output-key-prefix", n.path("home/maker"))
	first := n.release("v0.1.0-rc.1")
	n.must("create", "namespace", "skep-system")
	// The images of a release know the authorities that everybody knows.
	n.must(namespaced("create", "configmap", "authorities", "--from-file="+n.path("pki/ca.crt"))...)
	n.helm("install", "skep", "oci://"+first["charts/skep"], "--set=registries.allowed={registry.example.com}",
		"--set=registries.authorities=authorities", "--wait")
	n.runsImagesOf(first)
	for _, file := range []string{"release.signer.yaml", "counter.yaml"} {
		n.until("the webhook to let in "+file, func() error {
			_, err := n.kubectl("apply", "--filename", n.path("home/cluster/"+file))
			return err
		})
	}
	n.ready(counter...)
	n.sees(counter...)
	id, before, sealed := n.program(counter...), n.agent(), n.sealed()

	second := n.release("v0.1.0-rc.2")
	n.helm("upgrade", "skep", "oci://"+second["charts/skep"], "--reset-then-reuse-values", "--wait")
	n.agentReady(before)
	n.runsImagesOf(second)
	n.ready(counter...)
	n.still(id)
	n.sees(counter...)
	n.another("second")
	if now := n.sealed(); now != sealed {
		n.t.Errorf("intents were sealed anew: they were\n%s\nand are\n%s", sealed, now)
	}
}

// commit makes a repository of one commit that has the files of this one as they are: a
// release is made of a commit.
func (n *node) commit() {
	n.t.Helper()
	checkout := n.folder("checkout")
	copied := exec.CommandContext(n.t.Context(), "bash", "-c",
		`git -c safe.directory='*' ls-files -z --cached --others --exclude-standard | while IFS= read -rd '' file; `+
			`do [[ ! -e $file ]] || cp --parents "$file" "$0"; done`, checkout)
	copied.Dir = module.Root()
	if out, err := copied.CombinedOutput(); err != nil {
		n.t.Fatalf("copy the repository: %v\n%s", err, out)
	}
	git := []string{"git", "-C", checkout, "-c", "user.name=e2e", "-c", "user.email=e2e@example.com"}
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--all"}, {"commit", "--quiet", "--message=release"}} {
		n.run(append(git, args...)...)
	}
}

// release makes a release of the commit and pushes it, signed by the maker's key. It returns
// what is in it by repository, each as registry/repository@digest, of which cosign and skep
// verify the signature.
func (n *node) release(version string) map[string]string {
	n.t.Helper()
	cmd := exec.CommandContext(n.t.Context(), n.path("bin/release"), "-version", version, "-arch", runtime.GOARCH,
		"-key", n.path("home/maker.key"), "-push", releases)
	cmd.Dir = n.path("checkout")
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.t.Fatalf("make release %s: %v\n%s", version, err, out)
	}
	n.t.Logf("%s", out)
	listed, err := os.ReadFile(filepath.Join(cmd.Dir, "dist", "release", "images.txt"))
	if err != nil {
		n.t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(listed)) {
		tagged, digest, _ := strings.Cut(strings.TrimSpace(line), "@")
		repository := tagged[:strings.LastIndex(tagged, ":")]
		ref := repository + "@" + digest
		n.verified(ref)
		all[strings.TrimPrefix(repository, releases+"/")] = ref
	}
	return all
}

// verified has cosign's library and skep verify what the maker signed, and neither take it for
// what another key signed.
func (n *node) verified(ref string) {
	n.t.Helper()
	for key, want := range map[string]bool{"maker": true, "cluster/release": false} {
		public, err := os.ReadFile(n.path("home/" + key + ".pub"))
		if err != nil {
			n.t.Fatal(err)
		}
		if err := cosignVerifies(n, ref, public); (err == nil) != want {
			n.t.Errorf("cosign with %s.pub says of %s: %v", key, ref, err)
		}
		out, err := exec.CommandContext(n.t.Context(), "skep", "verify", "--signers", n.path("home/"+key+".signer.yaml"), ref).CombinedOutput()
		if (err == nil) != want {
			n.t.Errorf("skep verify with %s.signer.yaml says of %s: %v\n%s", key, ref, err, out)
		}
	}
}

// cosignVerifies does what cosign verify --key --insecure-ignore-tlog does.
func cosignVerifies(n *node, ref string, public []byte) error {
	digest, err := name.NewDigest(ref)
	if err != nil {
		return err
	}
	key, err := cryptoutils.UnmarshalPEMToPublicKey(public)
	if err != nil {
		return err
	}
	verifier, err := signature.LoadVerifier(key, crypto.SHA256)
	if err != nil {
		return err
	}
	found, _, err := cosign.VerifyImageSignatures(n.t.Context(), digest, &cosign.CheckOpts{
		SigVerifier: verifier, IgnoreTlog: true, Offline: true, ClaimVerifier: cosign.SimpleClaimVerifier,
	})
	if err == nil && len(found) == 0 {
		err = errors.New("there is no signature")
	}
	return err
}

// runsImagesOf holds the cluster to run the images of a release, by their digests.
func (n *node) runsImagesOf(release map[string]string) {
	n.t.Helper()
	for kind, repository := range map[string]string{"daemonset/skep-agent": "skep-agent", "deployment/skep-controller": "skep-controller"} {
		if got := n.field("{.spec.template.spec.containers[0].image}", namespaced(kind)...); got != release[repository] {
			n.t.Errorf("%s has image %s, want %s", kind, got, release[repository])
		}
		n.must(namespaced("rollout", "status", kind)...)
	}
}

// another applies the counter under another name, and waits until it runs: the controller that leads has
// looked at what was there by then.
func (n *node) another(name string) {
	n.t.Helper()
	page, err := os.ReadFile(n.path("home/cluster/counter.yaml"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.file(name+".yaml", strings.Replace(string(page), "name: counter", "name: "+name, 1))
	n.must("apply", "--filename", n.path(name+".yaml"))
	n.ready(counter[0], name)
}

// sealed is what is sealed of the counter for the nodes.
func (n *node) sealed() string {
	n.t.Helper()
	found := n.field(`{range .items[?(@.spec.application.name=="counter")]}{.metadata.uid} {.spec}{end}`, "bpfintents")
	if found == "" {
		n.t.Fatal("nothing is sealed of the counter")
	}
	return found
}
