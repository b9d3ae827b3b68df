package image_test

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/image"
)

func TestByDigestOfALayout(t *testing.T) {
	if _, err := (image.Resolved{Repository: "dir", Digest: "sha256:" + strings.Repeat("1", 64)}).ByDigest(); err == nil {
		t.Error("a layout has a reference in a registry")
	}
}
