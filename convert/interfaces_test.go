package convert_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/convert"
)

// discovered are the interfaces of an attachment for which bpfman has allowedInterfaces.
func discovered(t *testing.T, allowed ...string) (*v1alpha1.Interfaces, convert.Document) {
	t.Helper()
	var quoted []string
	for _, name := range allowed {
		quoted = append(quoted, fmt.Sprintf("%q", name))
	}
	d := one(t, application("programs: [{name: a, type: XDP, xdp: {links: [{interfaceSelector: {interfacesDiscoveryConfig: {interfaceAutoDiscovery: true, "+
		"allowedInterfaces: ["+strings.Join(quoted, ", ")+"]}}}]}}]"))
	var app v1alpha1.ClusterBpfApplication
	if err := yaml.UnmarshalStrict(d.YAML, &app); err != nil {
		t.Fatalf("%v:\n%s", err, d.YAML)
	}
	return app.Spec.Programs[0].Attach[0].Interfaces, d
}

// bpfman matches a part of a name, and Skep the whole.
func TestAnExpressionChoosesWhatItDidInBpfman(t *testing.T) {
	names := []string{"lo", "eth0", "eth1.7", "veth", "veth1a", "veth$", "^eth0", "ETH0", "bond0", "cali12", "en", "enp0s3", "0", "net", "netnet", "a|b", ".*"}
	for _, part := range []string{
		"", "^", "$", "^$", ".*", "eth", "^eth", "eth$", "^eth0$", "^veth.*", ".*eth.*", ".+", "eth.*?", "^^eth", "^*eth", "^?eth", "(^eth)", "eth.*0$", `\Aeth0\z`,
		`^\Qveth$`, `veth\$`, `eth\.*`, "^e|t$", "^eth|^bond", "a|b|^$", "(?i)eth", "(?i:eth)0$", "(?U)e.*t", `\bnet\b`, "[$]$", `^\^eth`, "e{1}th", "^(net){2}$",
	} {
		in, d := discovered(t, "/"+part+"/")
		skeps, err := in.Expression()
		if err != nil || skeps == nil {
			t.Errorf("/%s/ became %q: %v", part, d.YAML, err)
			continue
		}
		bpfmans := regexp.MustCompile(part)
		for _, name := range names {
			if want, got := bpfmans.MatchString(name), skeps.MatchString(name); got != want {
				t.Errorf("/%s/ became %q, which chooses %s: %t, want %t", part, in.Regex, name, got, want)
			}
		}
	}
}

// Alternatives change none of each other.
func TestExpressionsAndNamesAreAlternatives(t *testing.T) {
	in, _ := discovered(t, "/(?i)^ETH/", "eth0.7", "/^a$|b/", "/")
	skeps, err := in.Expression()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"eth1": true, "Eth1": true, "a": true, "xbx": true, "A": false, "xB": false, "xeth0.7": false, "eth0x7": true, "veth0x7": false, "/": true,
	} {
		if got := skeps.MatchString(name); got != want {
			t.Errorf("%q chooses %s: %t, want %t", in.Regex, name, got, want)
		}
	}
}

func TestAnExpressionThatIsTooLongIsNoted(t *testing.T) {
	if _, d := discovered(t, "/"+strings.Repeat("a", v1alpha1.MaxRegex)+"/"); !todo(d, "interfaces.regex: it has 260 characters") {
		t.Errorf("no TODO in:\n%s", d.YAML)
	}
}

// TestThePageShowsWhatALinkBecomes holds the example of the page to the conversion.
func TestThePageShowsWhatALinkBecomes(t *testing.T) {
	page, err := os.ReadFile("../docs/migrate-from-bpfman.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), 2)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of YAML, want a link and what it becomes", len(blocks))
	}
	d := one(t, "apiVersion: bpfman.io/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: a}\nspec:\n  byteCode: {image: {url: registry.example.com/a:v1}}\n"+
		"  programs:\n  - name: a\n    type: XDP\n    xdp:\n      links:\n"+blocks[0][1])
	if !strings.Contains(string(d.YAML), blocks[1][1]) {
		t.Errorf("the page shows:\n%sand it becomes:\n%s", blocks[1][1], d.YAML)
	}
}
