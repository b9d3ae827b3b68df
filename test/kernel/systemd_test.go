package kernel

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/harness/need"
)

// TestTheUnitsOfThePages has systemd as the first process of a machine run the units of docs/user-space.md and of
// docs/operations/install.md. It takes some minutes under load, and runs where SKEP_VM_SYSTEMD names the series of a kernel.
func TestTheUnitsOfThePages(t *testing.T) {
	series := os.Getenv("SKEP_VM_SYSTEMD")
	if series == "" {
		t.Skip("SKIPPED: set SKEP_VM_SYSTEMD=6.12 to have systemd run the units of the pages")
	}
	need.File(t, "/lib/systemd/systemd", "systemd")
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := Fetch(t.Context(), series, filepath.Join(cache, "skep-kernels"))
	if err != nil {
		t.Fatal(err)
	}
	machine := Machine{Files: map[string][]byte{}, Links: map[string]string{"init": "usr/lib/systemd/systemd"}, Memory: "2G"}
	if machine.Kernel, err = tree.Image(); err != nil {
		t.Fatal(err)
	}
	debian(t, &machine)
	user(t, &machine)
	results, err := machine.Run(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	got := results["units"].Output
	for what, pattern := range map[string]string{
		"systemd is the first process":               `(?m)^systemd$`,
		"packets are counted":                        `counted: yes`,
		"the mount and both services are active":     `active\nactive\nactive\n`,
		"the reader is another user, in the group":   `Uid:\s[1-9].*\nGroups:.*\b9\d\d\b`,
		"the reader has no capability, and a filter": `CapEff:\s0+\nSeccomp:\s2\n`,
		"skep has three":                             `CapEff:\s000000c000001000\n`,
		"a restart of skep leaves the reader":        `same reader: yes`,
		"without the group":                          `permission denied: it was granted to the group metrics`,
		"without bpf in the filter":                  `operation not permitted, and there is no socket .* SystemCallFilter=`,
		"a map anew is opened":                       `a map anew: yes`,
		"a grant that is withdrawn":                  `not granted to this reader, or not any more\nactive`,
	} {
		if !regexp.MustCompile(pattern).MatchString(got) {
			t.Errorf("%s: no %s in\n%s", what, pattern, got)
		}
	}
	if strings.Contains(got, "GAVE UP") {
		t.Error(got)
	}
}

// debian adds this machine's systemd, and the programs that the script calls.
func debian(t *testing.T, m *Machine) {
	t.Helper()
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		m.Links[name] = "usr/" + name
	}
	for _, name := range []string{
		"bin/bash", "bin/grep", "bin/journalctl", "bin/mkdir", "bin/mount", "bin/rm", "bin/sed", "bin/sleep", "bin/systemctl", "bin/umount",
		"sbin/groupadd", "lib/systemd/systemd", "lib/systemd/systemd-journald", "lib/systemd/systemd-shutdown",
	} {
		withLibraries(t, m, "/usr/"+name)
	}
	for _, pattern := range []string{
		"/usr/lib/systemd/system/*", "/usr/lib/systemd/system/*.wants/*", "/usr/lib/x86_64-linux-gnu/libnss_*.so.2", "/usr/lib/x86_64-linux-gnu/systemd/*.so",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			if to, err := os.Readlink(path); err == nil && strings.HasPrefix(path, "/usr/lib/systemd/") {
				m.Links[strings.TrimPrefix(path, "/")] = to
			} else if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				withLibraries(t, m, path)
			}
		}
	}
	// What a machine of one's own needs no more than these units do.
	for _, unit := range []string{"systemd-tmpfiles-setup.service", "systemd-tmpfiles-setup-dev.service", "systemd-sysusers.service", "systemd-logind.service",
		"systemd-udevd.service", "systemd-udev-trigger.service", "systemd-timesyncd.service", "systemd-networkd.service", "systemd-user-sessions.service",
		"systemd-update-utmp.service", "systemd-random-seed.service", "systemd-modules-load.service", "getty.target"} {
		m.Links["etc/systemd/system/"+unit] = "/dev/null"
	}
	for path, content := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n", "etc/group": "root:x:0:\n", "etc/nsswitch.conf": "passwd: files systemd\ngroup: files systemd\n",
		"etc/machine-id": "0123456789abcdef0123456789abcdef\n", "etc/os-release": "ID=debian\n", "root/.keep": "", "var/log/.keep": "", "var/lib/.keep": "",
	} {
		m.Files[path] = []byte(content)
	}
}

// withLibraries adds a file of this machine's with the libraries that it is linked with.
func withLibraries(t *testing.T, m *Machine, path string) {
	t.Helper()
	all := []string{path}
	if out, err := exec.CommandContext(t.Context(), "ldd", path).Output(); err == nil {
		all = append(all, regexp.MustCompile(`/\S+`).FindAllString(string(out), -1)...)
	}
	for _, path := range all {
		to := "usr/" + strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(path, ":"), "/usr"), "/")
		to = strings.Replace(to, "usr//", "usr/", 1)
		if m.Files[to] != nil {
			continue
		}
		body, err := os.ReadFile(strings.TrimSuffix(path, ":"))
		if err != nil {
			t.Fatal(err)
		}
		m.Files[to] = body
	}
}

// inUnits finds the units of a page, whose paths stand before them.
var inUnits = regexp.MustCompile("(?s)`/etc/systemd/system/([^`]+)`[^`]*?```ini\n(.*?)```")

// user adds what a user of the pages has: the units, the binaries, a signed image and a definition.
func user(t *testing.T, m *Machine) {
	t.Helper()
	dir := t.TempDir()
	for name, folder := range map[string]string{"skep": "cmd/skep", "packet-exporter": "examples/xdp-counter/packet-exporter"} {
		m.Files["usr/local/bin/"+name] = build(t, filepath.Join(dir, name), "build", filepath.Join(root, folder))
	}
	for _, page := range []string{"docs/user-space.md", "docs/operations/install.md"} {
		body, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, unit := range inUnits.FindAllStringSubmatch(string(body), -1) {
			// In a list, all lines of a unit begin with the list's margin.
			m.Files["etc/systemd/system/"+unit[1]] = []byte(regexp.MustCompile(`(?m)^   `).ReplaceAllString(unit[2], ""))
		}
	}
	service := string(m.Files["etc/systemd/system/skep.service"])
	// There is no network: the source is a folder, and no credentials are needed.
	service = regexp.MustCompile(`--source \S+ --ref \S+|--policy \S+`).ReplaceAllString(service, "")
	service = regexp.MustCompile(`(?m)^.*(--git-username|LoadCredential|DOCKER_CONFIG).*\n`).ReplaceAllString(service, "")
	m.Files["etc/systemd/system/skep.service"] = []byte(strings.Replace(service, "skep run", "skep run --source /srv/defs", 1))
	m.Files["etc/systemd/system/walk.service"] = []byte("[Service]\nType=oneshot\nExecStart=/usr/local/bin/walk\n")
	m.Links["etc/systemd/system/multi-user.target.wants/walk.service"] = "../walk.service"
	walk, err := os.ReadFile("testdata/units.sh")
	if err != nil {
		t.Fatal(err)
	}
	m.Files["usr/local/bin/walk"] = walk
	m.Files["srv/defs/counter.yaml"] = []byte("apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: counter}\nspec:\n" +
		"  bytecode: {image: 'oci:/srv/bpf/counter:v1'}\n  programs:\n  - name: count_packets\n    attach: [{hook: xdp, interfaces: {names: [lo]}}]\n" +
		"  maps:\n    counts:\n      export:\n      - {access: Read, groups: [metrics]}\n")
	object, err := filepath.Abs(filepath.Join(root, "examples/xdp-counter/xdp_counter.bpf.o"))
	if err != nil {
		t.Fatal(err)
	}
	image := "oci:" + dir + "/bpf/counter:v1"
	for _, args := range [][]string{
		{"key", "generate", "--output-key-prefix", "author"}, {"image", "build", "-f", object, image}, {"sign", "--key", "author.key", image},
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "skep"), args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "COSIGN_PASSWORD=", "HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("skep %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	signer, err := os.ReadFile(filepath.Join(dir, "author.signer.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	m.Files["etc/skep/signers/author.signer.yaml"] = signer
	if err := filepath.WalkDir(filepath.Join(dir, "bpf"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		m.Files["srv"+strings.TrimPrefix(path, dir)], err = os.ReadFile(path)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
