package image

import (
	"bytes"
	_ "embed"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

//go:embed testdata/pass_bpfel.o
var littleEndian []byte

//go:embed testdata/pass_bpfeb.o
var bigEndian []byte

func TestCore(t *testing.T) {
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	c, err := NewClient(Options{CacheDir: t.TempDir(), Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Build(littleEndian, BuildOptions{Labels: map[string]string{LabelPrograms: `{"pass":"xdp"}`}})
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{host + "/a/b:v1", "oci:" + t.TempDir() + "/x:v1"} {
		if _, err := c.Push(t.Context(), ref, b); err != nil {
			t.Fatal(err)
		}
		r, err := c.Resolve(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		img, err := c.Pull(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(img.Object, littleEndian) || img.Labels[LabelPrograms] == "" {
			t.Fatal(img)
		}
		t.Log(r, img.ObjectDigest)
	}
}
