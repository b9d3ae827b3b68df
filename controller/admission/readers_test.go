package admission

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestMapsThatNoPodReadsAreWarnedOf(t *testing.T) {
	pods := v1alpha1.MapExport{Access: v1alpha1.MapRead, Namespaces: []string{"web"}}
	groups := v1alpha1.MapExport{Access: v1alpha1.MapRead, Groups: []string{"adm"}}
	to := func(names ...string) map[string]v1alpha1.Map {
		all := map[string]v1alpha1.Map{}
		for _, name := range names {
			all[name] = v1alpha1.Map{Export: []v1alpha1.MapExport{groups}}
		}
		return all
	}
	for sentence, c := range map[string]struct {
		maps map[string]v1alpha1.Map
		want string
	}{
		"nothing is granted":     {map[string]v1alpha1.Map{"a": {}}, ""},
		"to pods":                {map[string]v1alpha1.Map{"a": {Export: []v1alpha1.MapExport{pods}}}, ""},
		"to pods and to groups":  {map[string]v1alpha1.Map{"a": {Export: []v1alpha1.MapExport{groups, pods}}}, ""},
		"to groups alone":        {to("b", "a"), ": a, b"},
		"of many maps to groups": {to("d", "c", "b", "a"), ": a, b, c, …"},
	} {
		spec := v1alpha1.BpfApplicationSpec{Maps: c.maps}
		got := strings.Join(groupsAlone(&v1alpha1.ClusterBpfApplication{Spec: spec}), "\n")
		if (got == "") != (c.want == "") || !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %q, want %q", sentence, got, c.want)
		}
		if got := groupsAlone(&v1alpha1.BpfApplication{Spec: spec}); len(got) > 0 {
			t.Errorf("%s: of a namespace: %q", sentence, got)
		}
	}
}
