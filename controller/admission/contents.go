package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// maxContentMaps bounds the maps that keptContents names.
const maxContentMaps = 3

// keptContents warns, in one line, of contents of maps that an update changes and that nodes
// do not write, since they keep the maps: who applies a definition expects what it says.
func keptContents(before client.Object, now v1alpha1.Application) []string {
	was, ok := before.(v1alpha1.Application)
	if !ok {
		return nil
	}
	had, has := was.Body().Maps, now.Body().Maps
	all := maps.Clone(has)
	if all == nil {
		all = map[string]v1alpha1.Map{}
	}
	maps.Copy(all, had)
	var changed []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		// A map that is another application's has none.
		if has[name].From == nil && has[name].OnUpdate != v1alpha1.MapReset && !equality.Semantic.DeepEqual(had[name].Contents, has[name].Contents) {
			changed = append(changed, name)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	more := ""
	if n := len(changed) - maxContentMaps; n > 0 {
		changed, more = changed[:maxContentMaps], fmt.Sprintf(" and %d more", n)
	}
	return []string{
		fmt.Sprintf("contents of maps changed, and nodes that keep the map keep what is in it; set onUpdate: Reset to write them: %s%s",
			strings.Join(changed, ", "), more),
	}
}
