// Package history keeps the last versions of an application, as its status shows them.
//
// It is pure: it takes the versions so far and what is known now, and returns the versions. It decides nothing about an
// application, and its record is not sealed.
package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/text"
)

// Now is what is known of an application.
type Now struct {
	// At is the time; Generation is metadata.generation, Revision that of the source.
	At         time.Time
	Generation int64
	Revision   string
	// Live is the intent that agents have; nil if they never had one. Changes are those from the version that it replaced.
	Live    *intent.Payload
	Changes []string
	// Result is Deployed or Failed by the reports of nodes; empty while neither is known.
	Result v1alpha1.VersionResult
	// Denied is the definition, if it is denied and is not what runs.
	Denied *Denied
}

// Denied is a definition that is denied.
type Denied struct {
	// Definition is its gate.Generation.
	Definition    int64
	Image, Digest string
	Signers       []string
	Policies      string
	// Rules are those that deny, and Changes those from what runs.
	Rules, Changes []string
}

// Record returns the versions of an application, the newest first, after what is known now. The arguments stay as they are. The
// record of the live version is made anew from its intent, whatever it said before.
func Record(before []v1alpha1.ApplicationVersion, now Now) []v1alpha1.ApplicationVersion {
	all := slices.Clone(before)
	switch {
	case now.Live == nil:
	case now.Live.Tombstone:
		if i := sealed(all); i >= 0 {
			all[i].Result = v1alpha1.VersionUnloaded
		}
	default:
		all = now.record(all)
	}
	if now.Denied != nil {
		all = now.deny(all)
	}
	return bound(all)
}

// sealed is the index of the newest version that was sealed; -1 without one.
func sealed(all []v1alpha1.ApplicationVersion) int {
	return slices.IndexFunc(all, func(v v1alpha1.ApplicationVersion) bool { return v.Serial > 0 })
}

// Continues returns the live intent as the record of its version has it: on a host, each intent has a serial of its own, also one that seals
// the same version once more. before is the intent that live replaced.
func Continues(all []v1alpha1.ApplicationVersion, before, live *intent.Payload) *intent.Payload {
	i := sealed(all)
	if i < 0 || live.Tombstone || all[i].Result == v1alpha1.VersionUnloaded {
		return live
	}
	follows := before != nil && all[i].Serial == before.VersionSerial() && before.SameVersion(live)
	if !follows && (all[i].Definition != hashed(live.Generation) || all[i].Digest != live.ImageDigest) {
		return live
	}
	one := *live
	one.Version = all[i].Serial
	return &one
}

// record records the live version.
func (n Now) record(all []v1alpha1.ApplicationVersion) []v1alpha1.ApplicationVersion {
	serial, i := n.Live.VersionSerial(), sealed(all)
	if i < 0 || all[i].Serial != serial || all[i].Result == v1alpha1.VersionUnloaded {
		one := v1alpha1.ApplicationVersion{Generation: n.Generation, Revision: n.Revision, Changes: n.Changes, Result: v1alpha1.VersionAllowed}
		earlier := slices.IndexFunc(all, func(v v1alpha1.ApplicationVersion) bool { return v.Serial == serial })
		if i >= 0 && earlier > i {
			one.RolledBackTo, all[i].Result = all[earlier].Version, v1alpha1.VersionRolledBack
		}
		all, i = push(all, one, hashed(n.Live.Generation)), 0
	}
	v := &all[i]
	v.Time, v.Serial, v.Definition = stamp(time.UnixMilli(serial)), serial, hashed(n.Live.Generation)
	v.Image, v.Digest = text.CutRunes(n.Live.Image, maxImage), n.Live.ImageDigest
	v.SignedBy, v.Policies, v.Message = SignedBy(n.Live.Signers), n.Live.PolicyRevision, ""
	if n.Result != "" {
		v.Result = n.Result
	}
	return all
}

// deny records a definition that is denied, once.
func (n Now) deny(all []v1alpha1.ApplicationVersion) []v1alpha1.ApplicationVersion {
	d := n.Denied
	if len(all) > 0 && all[0].Serial > 0 && all[0].Definition == hashed(d.Definition) {
		// It ran, and its result says what became of it.
		return all
	}
	one := v1alpha1.ApplicationVersion{
		Time: stamp(n.At), Generation: n.Generation, Revision: n.Revision, Changes: d.Changes, Result: v1alpha1.VersionDenied,
		Image: text.CutRunes(d.Image, maxImage), Digest: d.Digest, SignedBy: SignedBy(d.Signers), Policies: d.Policies,
		Message: text.CutRunes("denied by "+strings.Join(d.Rules, ", "), maxMessage),
	}
	if len(all) > 0 && all[0].Result == v1alpha1.VersionDenied && all[0].Definition == hashed(d.Definition) {
		one.Time, one.Generation, one.Revision = all[0].Time, all[0].Generation, all[0].Revision
	}
	return push(all, one, hashed(d.Definition))
}

// push puts a version of a definition before the others, in the place of the newest one if that is the same definition and was denied.
func push(all []v1alpha1.ApplicationVersion, one v1alpha1.ApplicationVersion, definition string) []v1alpha1.ApplicationVersion {
	one.Definition, one.Version = definition, 1
	if len(all) > 0 {
		one.Version = all[0].Version + 1
		if all[0].Result == v1alpha1.VersionDenied && all[0].Definition == definition {
			one.Version = all[0].Version
			all = all[1:]
		}
	}
	return append([]v1alpha1.ApplicationVersion{one}, all...)
}

// The bounds of texts in a record, in characters.
const (
	maxImage   = 256
	maxMessage = 256
	maxName    = 64
)

// bound leaves out the oldest versions.
func bound(all []v1alpha1.ApplicationVersion) []v1alpha1.ApplicationVersion {
	all = all[:min(len(all), v1alpha1.MaxHistory)]
	for len(all) > 1 && size(all) > v1alpha1.MaxHistoryBytes {
		all = all[:len(all)-1]
	}
	return all
}

func size(all []v1alpha1.ApplicationVersion) int {
	// Its types have nothing that JSON lacks.
	body, _ := json.Marshal(all)
	return len(body)
}

func hashed(definition int64) string { return fmt.Sprintf("%016x", uint64(definition)) }

// stamp is a time as the API server keeps it.
func stamp(t time.Time) metav1.Time { return metav1.NewTime(t.UTC().Truncate(time.Second)) }

// SignedBy is the first three of some signers in one line, and how many more there are.
func SignedBy(signers []string) string {
	const most = 3
	line := strings.Join(signers[:min(most, len(signers))], ",")
	if more := len(signers) - most; more > 0 {
		line += fmt.Sprintf(" (and %d more)", more)
	}
	return line
}

// Changes names what two versions differ in, for a status; never values. It is empty without a version before.
func Changes(before, now *intent.Payload) []string {
	if before == nil || now == nil || before.Tombstone {
		return nil
	}
	var all []string
	add := func(differs bool, name string) {
		if differs {
			all = append(all, name)
		}
	}
	add(now.ImageDigest != "" && before.ImageDigest != now.ImageDigest, "image digest")
	add(now.ImageDigest == "" && before.Image != now.Image, "image")
	all = append(all, differing("variable", before.Variables, now.Variables, sameJSON)...)
	all = append(all, differing("map", v1alpha1.WithoutReaders(before.Maps), v1alpha1.WithoutReaders(now.Maps), same[v1alpha1.Map])...)
	all = append(all, differing("program", byName(before.Programs), byName(now.Programs), same[v1alpha1.Program])...)
	add(!same(before.Alternatives, now.Alternatives), "alternatives")
	add(!same(before.NodeSelector, now.NodeSelector), "node selector")
	if more := len(all) - v1alpha1.MaxChanges; more > 0 {
		all = append(all[:v1alpha1.MaxChanges:v1alpha1.MaxChanges], fmt.Sprintf("and %d more", more))
	}
	return all
}

// ChangesOfDefinition names what a definition changes of a version that runs, as far as that is known of one that was not evaluated
// to the end.
func ChangesOfDefinition(before *intent.Payload, spec *v1alpha1.BpfApplicationSpec, digest string) []string {
	if before == nil || before.Tombstone {
		return nil
	}
	now := &intent.Payload{Image: spec.Bytecode.Image, ImageDigest: digest, Variables: spec.Variables, Maps: spec.Maps, Alternatives: spec.Alternatives,
		NodeSelector: spec.NodeSelector}
	ran := byName(before.Programs)
	for _, p := range spec.Programs {
		if one, had := ran[p.Name]; had {
			// What is sealed has hooks and targets filled in.
			p = one
		}
		now.Programs = append(now.Programs, p)
	}
	return Changes(before, now)
}

// differing names what two sets of one kind differ in, in the order of names.
func differing[T any](kind string, before, now map[string]T, alike func(a, b T) bool) (all []string) {
	names := maps.Clone(before)
	if names == nil {
		names = map[string]T{}
	}
	maps.Copy(names, now)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, had := before[name]
		b, has := now[name]
		if had != has || !alike(a, b) {
			all = append(all, kind+" "+text.CutRunes(name, maxName))
		}
	}
	return all
}

func byName(all []v1alpha1.Program) map[string]v1alpha1.Program {
	of := map[string]v1alpha1.Program{}
	for _, p := range all {
		of[p.Name] = p
	}
	return of
}

// same compares as JSON, as a seal does.
func same[T any](a, b T) bool {
	if reflect.DeepEqual(a, b) {
		return true
	}
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

func sameJSON(a, b apiextensionsv1.JSON) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a.Raw) == nil && json.Compact(&y, b.Raw) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}
