package history

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// version is a live intent of a definition.
func version(serial, definition int64) *intent.Payload {
	return &intent.Payload{Serial: serial, Generation: definition, ImageDigest: fmt.Sprint("sha256:", definition), Signers: []string{"a", "b", "c", "d"}}
}

// say is a history in short.
func say(all []v1alpha1.ApplicationVersion) string {
	var lines []string
	for _, v := range all {
		line := fmt.Sprint(v.Version, " ", v.Result)
		if v.RolledBackTo > 0 {
			line += fmt.Sprint(" to ", v.RolledBackTo)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, ", ")
}

func TestRecord(t *testing.T) {
	live := func(serial, definition int64) Now { return Now{At: noon, Live: version(serial, definition)} }
	is := func(n Now, result v1alpha1.VersionResult) Now { n.Result = result; return n }
	denies := func(n Now, definition int64) Now {
		n.At, n.Denied = noon, &Denied{Definition: definition, Rules: []string{"signed", "hooks"}}
		return n
	}
	gone := Now{Live: &intent.Payload{Serial: 9, Tombstone: true}}
	moved := live(7, 1)
	moved.Live.Version = 5
	for sentence, c := range map[string]struct {
		then []Now
		want string
	}{
		"nothing is known":                {[]Now{{}}, ""},
		"the first version":               {[]Now{live(5, 1)}, "1 Allowed"},
		"it is deployed":                  {[]Now{live(5, 1), is(live(5, 1), v1alpha1.VersionDeployed)}, "1 Deployed"},
		"another node has it to load":     {[]Now{is(live(5, 1), v1alpha1.VersionDeployed), live(5, 1)}, "1 Deployed"},
		"a step of its rollout is sealed": {[]Now{live(5, 1), moved}, "1 Allowed"},
		"a node fails":                    {[]Now{is(live(5, 1), v1alpha1.VersionDeployed), is(live(5, 1), v1alpha1.VersionFailed)}, "1 Failed"},
		"a version replaces it":           {[]Now{is(live(5, 1), v1alpha1.VersionDeployed), live(6, 2)}, "2 Allowed, 1 Deployed"},
		"the version before is back": {[]Now{live(5, 1), is(live(6, 2), v1alpha1.VersionFailed), live(5, 1)},
			"3 Allowed to 1, 2 RolledBack, 1 Allowed"},
		"it is unloaded":                    {[]Now{is(live(5, 1), v1alpha1.VersionDeployed), gone}, "1 Unloaded"},
		"it is loaded again":                {[]Now{live(5, 1), gone, live(10, 1)}, "2 Allowed, 1 Unloaded"},
		"it is denied":                      {[]Now{denies(Now{}, 1)}, "1 Denied"},
		"it stays denied":                   {[]Now{denies(Now{}, 1), denies(Now{}, 1)}, "1 Denied"},
		"another definition is denied":      {[]Now{denies(Now{}, 1), denies(Now{}, 2)}, "2 Denied, 1 Denied"},
		"it is signed after it was denied":  {[]Now{denies(Now{}, 1), live(5, 1)}, "1 Allowed"},
		"another one is allowed after that": {[]Now{denies(Now{}, 1), live(5, 2)}, "2 Allowed, 1 Denied"},
		"an update is denied":               {[]Now{is(live(5, 1), v1alpha1.VersionDeployed), denies(live(5, 1), 2)}, "2 Denied, 1 Deployed"},
		"a node fails behind it": {[]Now{live(5, 1), denies(live(5, 1), 2), is(denies(live(5, 1), 2), v1alpha1.VersionFailed)},
			"2 Denied, 1 Failed"},
		"a policy unloads what its definition asks for": {[]Now{live(5, 1), denies(gone, 1)}, "1 Unloaded"},
	} {
		var all []v1alpha1.ApplicationVersion
		for _, now := range c.then {
			before := slices.Clone(all)
			was := slices.Clone(before)
			all = Record(before, now)
			if diff := cmp.Diff(was, before); diff != "" {
				t.Errorf("%s: the argument changed:\n%s", sentence, diff)
			}
		}
		if got := say(all); got != c.want {
			t.Errorf("%s: %q, want %q", sentence, got, c.want)
		}
	}
}

// TestTheLiveRecordIsMadeFromTheSeal has somebody edit the status.
func TestTheLiveRecordIsMadeFromTheSeal(t *testing.T) {
	all := Record(nil, Now{At: noon, Live: version(5, 1)})
	all[0].Digest, all[0].SignedBy, all[0].Policies = "sha256:evil", "nobody", "none"
	all = Record(all, Now{At: noon, Live: version(5, 1)})
	if got := all[0]; got.Digest != "sha256:1" || got.SignedBy != "a,b,c (and 1 more)" || got.Policies != "" {
		t.Errorf("records %+v", got)
	}
}

func TestOneWhichIsDeniedKeepsItsTime(t *testing.T) {
	d := &Denied{Definition: 1, Rules: []string{"signed", "hooks"}}
	all := Record(nil, Now{At: noon.Add(time.Millisecond), Generation: 4, Denied: d})
	again := Record(all, Now{At: noon.Add(time.Hour), Generation: 5, Denied: d})
	if diff := cmp.Diff(all, again); diff != "" || !all[0].Time.Time.Equal(noon) || all[0].Message != "denied by signed, hooks" {
		t.Errorf("records %+v, then\n%s", all[0], diff)
	}
}

func TestItIsBounded(t *testing.T) {
	before, now := version(1, 1), version(1, 1)
	for i := range 200 {
		now.Programs = append(now.Programs, v1alpha1.Program{Name: strings.Repeat("é", 200) + fmt.Sprint(i)})
	}
	now.Image, now.Signers = strings.Repeat("x", 600), slices.Repeat([]string{strings.Repeat("s", 253)}, 9)
	names := Changes(before, now)
	if len(names) != v1alpha1.MaxChanges+1 || names[v1alpha1.MaxChanges] != "and 190 more" {
		t.Errorf("names %d changes: %q", len(names), names)
	}
	var all []v1alpha1.ApplicationVersion
	for i := range int64(30) {
		now.Serial, now.Generation = i+1, i+1
		all = Record(all, Now{At: noon, Live: now, Changes: names})
	}
	body, err := json.Marshal(all)
	if err != nil || len(body) > v1alpha1.MaxHistoryBytes || len(all) < 2 || all[0].Version != 30 {
		t.Errorf("%d versions take %d bytes: %v", len(all), len(body), err)
	}
	for i := range int64(30) {
		all = Record(all, Now{At: noon, Live: version(100+i, 100+i)})
	}
	if len(all) != v1alpha1.MaxHistory || all[0].Version != 60 {
		t.Errorf("has %d versions: %s", len(all), say(all))
	}
}

func TestChanges(t *testing.T) {
	value := func(raw string) map[string]apiextensionsv1.JSON {
		return map[string]apiextensionsv1.JSON{"sampling": {Raw: []byte(raw)}}
	}
	base := func() *intent.Payload {
		p := version(1, 1)
		p.Variables = value(`{"a": 1}`)
		p.Programs = []v1alpha1.Program{{Name: "f"}}
		return p
	}
	for sentence, c := range map[string]struct {
		change func(*intent.Payload)
		want   string
	}{
		"nothing":          {func(*intent.Payload) {}, ""},
		"space in a value": {func(p *intent.Payload) { p.Variables = value(`{"a":1}`) }, ""},
		"a value":          {func(p *intent.Payload) { p.Variables = value(`"secret"`) }, "variable sampling"},
		"a variable less":  {func(p *intent.Payload) { p.Variables = nil }, "variable sampling"},
		"the image":        {func(p *intent.Payload) { p.ImageDigest = "sha256:2" }, "image digest"},
		"a reader of a map": {func(p *intent.Payload) {
			p.Maps = map[string]v1alpha1.Map{"m": {Export: []v1alpha1.MapExport{{Access: "Read"}}}}
		}, ""},
		"a size":                  {func(p *intent.Payload) { p.Maps = map[string]v1alpha1.Map{"m": {MaxEntries: new(uint32)}} }, "map m"},
		"a program":               {func(p *intent.Payload) { p.Programs[0].Attach = []v1alpha1.Attachment{{Hook: "xdp"}} }, "program f"},
		"a program that is other": {func(p *intent.Payload) { p.Programs[0].Name = "g" }, "program f, program g"},
		"nodes":                   {func(p *intent.Payload) { p.NodeSelector = &metav1.LabelSelector{} }, "node selector"},
		"all": {func(p *intent.Payload) {
			p.ImageDigest, p.Variables, p.Alternatives = "sha256:2", nil, []v1alpha1.Alternative{{Name: "x"}}
		}, "image digest, variable sampling, alternatives"},
	} {
		now := base()
		c.change(now)
		if got := strings.Join(Changes(base(), now), ", "); got != c.want {
			t.Errorf("%s: %q, want %q", sentence, got, c.want)
		}
	}
	if got := Changes(nil, base()); got != nil {
		t.Errorf("the first version changes %q", got)
	}
}
