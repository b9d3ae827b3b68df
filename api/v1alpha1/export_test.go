package v1alpha1_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// exports reads grants, of which the access is a letter, and so are the names of lists.
func exports(t *testing.T, text string) (all []v1alpha1.MapExport) {
	t.Helper()
	whole := strings.NewReplacer("{R", "{access: Read", "{W", "{access: Write", "{C", "{access: Consume",
		"n:", "namespaces:", "s:", "serviceAccounts:", "g:", "groups:").Replace(text)
	if err := yaml.UnmarshalStrict([]byte("["+whole+"]"), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestGrantsAreNarrowedToWhatOthersAllow(t *testing.T) {
	cluster := v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}
	namespaced := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "red", Name: "app"}
	for sentence, c := range map[string]struct {
		of                   v1alpha1.Identity
		grants, others, want string
	}{
		"the same":             {cluster, "{R, n: [a, b]}", "{R, n: [a, b]}", "{R, n: [a, b]}"},
		"a list that is empty": {cluster, "{R, n: [a], g: []}", "{R, n: [a]}", "{R, n: [a], g: []}"},
		"others allow more":    {cluster, "{R, n: [a]}", "{W, n: [b, a], g: [g]}", "{R, n: [a]}"},
		"others allow none":    {cluster, "{R, n: [a]}", "", ""},
		"less names":           {cluster, "{R, n: [a, b], g: [g]}", "{R, n: [b, c]}", "{R, n: [b]}"},
		"less access":          {cluster, "{W, g: [g]}", "{R, g: [g]}", "{R, g: [g]}"},
		"another access":       {cluster, "{C, g: [g]}", "{R, g: [g]}", ""},
		"one account of all":   {cluster, "{R, n: [a]}", "{R, n: [a], s: [s]}", "{R, n: [a], s: [s]}"},
		"all accounts":         {cluster, "{R, n: [a], s: [s]}", "{R, n: [a]}", "{R, n: [a], s: [s]}"},
		"other accounts":       {cluster, "{R, n: [a], s: [s], g: [g]}", "{R, n: [a], s: [t], g: [g]}", "{R, g: [g]}"},
		"other namespaces":     {cluster, "{R, n: [a], s: [s]}", "{R, n: [b]}", ""},
		"in parts":             {cluster, "{R, n: [a, b]}", "{R, n: [a], s: [s]}, {R, n: [b]}", "{R, n: [a], s: [s]}, {R, n: [b]}"},
		"whole, in parts":      {cluster, "{R, n: [a, b]}", "{R, n: [b]}, {R, n: [a]}", "{R, n: [a, b]}"},
		"many, in parts": {
			cluster, "{R, n: [a, b, c], s: [s]}, {R, n: [a, b, c], s: [t]}, {W, g: [g]}", "{R, n: [a]}, {R, n: [b]}, {W, g: [g]}",
			"{R, n: [a, b], s: [s]}, {R, n: [a, b], s: [t]}, {W, g: [g]}",
		},
		"overlapping":            {cluster, "{R, n: [a, b]}, {R, n: [a, c]}", "{R, n: [a]}", "{R, n: [a]}"},
		"its own, by name":       {namespaced, "{R}", "{R, n: [red]}", "{R}"},
		"its own, not by name":   {namespaced, "{R, n: [red]}", "{R}", "{R, n: [red]}"},
		"of it, no account left": {namespaced, "{R, s: [s], g: [g]}", "{R, s: [t], g: [g]}", ""},
		"of it, one of accounts": {namespaced, "{R, s: [s, t]}", "{R, s: [t]}", "{R, n: [red], s: [t]}"},
	} {
		t.Run(sentence, func(t *testing.T) {
			grants, others := exports(t, c.grants), exports(t, c.others)
			narrowed, isLess := v1alpha1.NarrowExports(c.of, grants, others)
			if diff := cmp.Diff(exports(t, c.want), narrowed); diff != "" && len(narrowed)+len(c.want) > 0 {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if isLess != (c.want != c.grants) {
				t.Errorf("it is less: %v", isLess)
			}
			if again, isLess := v1alpha1.NarrowExports(c.of, narrowed, others); isLess {
				t.Errorf("what was narrowed is narrowed to %+v", again)
			}
		})
	}
}

// TestNarrowedGrantsAreNeverWider takes pairs of grants of few names, and asks who has which access.
func TestNarrowedGrantsAreNeverWider(t *testing.T) {
	lists := [][]string{nil, {"a"}, {"b"}, {"a", "b"}}
	var all []v1alpha1.MapExport
	for _, to := range []v1alpha1.MapAccess{v1alpha1.MapRead, v1alpha1.MapWrite, v1alpha1.MapConsume} {
		for _, namespaces := range lists {
			for _, accounts := range lists {
				for _, groups := range lists {
					all = append(all, v1alpha1.MapExport{Access: to, Namespaces: namespaces, ServiceAccounts: accounts, Groups: groups})
				}
			}
		}
	}
	for _, id := range []v1alpha1.Identity{{Kind: v1alpha1.KindClusterBpfApplication}, {Kind: v1alpha1.KindBpfApplication, Namespace: "a"}} {
		for _, g := range all {
			for i, o := range all {
				others := []v1alpha1.MapExport{o, all[(7*i+3)%len(all)]}
				narrowed, _ := v1alpha1.NarrowExports(id, []v1alpha1.MapExport{g}, others)
				has, allowed, gives := who(id, g), who(id, others...), who(id, narrowed...)
				for one := range gives {
					if !has[one] || !allowed[one] {
						t.Fatalf("%+v: %+v narrowed by %+v is %+v, which gives %s", id, g, others, narrowed, one)
					}
				}
				for one := range has {
					if allowed[one] && !gives[one] && id.Namespace == "" {
						t.Fatalf("%+v: %+v narrowed by %+v is %+v, which does not give %s", id, g, others, narrowed, one)
					}
				}
			}
		}
	}
}

// who are those that have grants, of few names, with what they may do.
func who(id v1alpha1.Identity, grants ...v1alpha1.MapExport) map[string]bool {
	all, names := map[string]bool{}, []string{"a", "b"}
	for _, g := range grants {
		namespaces := g.Namespaces
		if id.Namespace != "" {
			if namespaces == nil {
				namespaces = []string{id.Namespace}
			}
			namespaces = slices.DeleteFunc(slices.Clone(namespaces), func(n string) bool { return n != id.Namespace })
		}
		may := []v1alpha1.MapAccess{g.Access}
		if g.Access == v1alpha1.MapWrite {
			may = append(may, v1alpha1.MapRead)
		}
		for _, to := range may {
			for _, account := range names {
				if len(g.ServiceAccounts) == 0 || slices.Contains(g.ServiceAccounts, account) {
					for _, n := range namespaces {
						all[fmt.Sprint(to, " to account ", n, "/", account)] = true
					}
				}
			}
			for _, group := range g.Groups {
				all[fmt.Sprint(to, " to group ", group)] = true
			}
		}
	}
	return all
}
