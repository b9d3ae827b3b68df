package admission

import (
	"encoding/json"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// maxObjectBytes bounds an object, metadata included: an intent made of a larger one
// might not fit into its envelope, and every controller keeps it in memory.
const maxObjectBytes = 512 << 10

// size is that of an object in bytes: what people write, and what the API server
// records of who wrote it, to which each field manager adds.
type size struct{ written, managed int }

func (s size) all() int { return s.written + s.managed }

// sizeOf measures an object. A status does not count: no user writes it.
func sizeOf(raw []byte) (size, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil {
		return size{}, err
	}
	var metadata map[string]json.RawMessage
	if err := json.Unmarshal(object["metadata"], &metadata); err != nil {
		return size{}, err
	}
	managed := len(metadata["managedFields"])
	// Nor do the numbers that the API server counts up.
	own := len(object["status"]) + len(metadata["resourceVersion"]) + len(metadata["generation"])
	return size{written: len(raw) - own - managed, managed: managed}, nil
}

// oversized says what is too large about a request; empty where nothing is. Whatever
// the update is of, what is larger than it may be must not grow. What is too large
// already can shrink, and can be deleted: who takes something away may be a field
// manager more.
func oversized(req webhook.AdmissionRequest, deleting bool) (string, error) {
	if len(req.Object.Raw) <= maxObjectBytes {
		return "", nil
	}
	now, err := sizeOf(req.Object.Raw)
	if err != nil {
		return "", fmt.Errorf("measure %s: %w", name(req), err)
	}
	var before size
	if req.Operation == admissionv1.Update {
		if before, err = sizeOf(req.OldObject.Raw); err != nil {
			return "", fmt.Errorf("measure %s as it was: %w", name(req), err)
		}
	}
	shrinks := deleting || now.written < before.written && now.managed <= maxObjectBytes
	switch {
	case now.all() <= maxObjectBytes:
		return "", nil
	case now.written > before.written:
		return fmt.Sprintf("admission/size: the object has %d bytes, at most %d are taken (split it, or take labels and annotations from it)",
			now.all(), maxObjectBytes), nil
	case now.managed > before.managed && !shrinks:
		return fmt.Sprintf("admission/size: the object has %d bytes, %d of them metadata.managedFields, at most %d are taken (write it by fewer field managers)",
			now.all(), now.managed, maxObjectBytes), nil
	}
	return "", nil
}
