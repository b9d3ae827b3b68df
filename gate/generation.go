package gate

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// AnnotationRequestedAt is Flux's annotation: changing its value has a tag
// resolved anew.
const AnnotationRequestedAt = "reconcile.fluxcd.io/requestedAt"

// Generation names what a definition asks nodes for: it is equal for equal specs,
// but for suspend, rollout and who reads maps, and values of AnnotationRequestedAt, and
// positive. A tag is resolved once per generation.
func Generation(app v1alpha1.Application) (int64, error) {
	spec := *app.Body()
	spec.Suspend, spec.Rollout, spec.Maps = false, nil, v1alpha1.WithoutReaders(spec.Maps)
	body, err := json.Marshal(struct {
		Spec      *v1alpha1.BpfApplicationSpec
		Requested string
	}{&spec, app.GetAnnotations()[AnnotationRequestedAt]})
	if err != nil {
		return 0, fmt.Errorf("hash spec of %s: %w", app.Identity(), err)
	}
	sum := sha256.Sum256(body)
	return int64(binary.BigEndian.Uint64(sum[:8])>>1) | 1, nil
}
