package transport

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/image"
)

func TestTheNextPageIsNamedAsRFC8288SaysIt(t *testing.T) {
	for header, want := range map[string]string{
		``:                               "",
		`</v2/x?n=1>; rel="next"`:        "/v2/x?n=1",
		`</v2/x?n=1>;rel=next`:           "/v2/x?n=1",
		`<a>; rel="prev", <b>; Rel=Next`: "b",
		`<a>; title="x"; rel="next"`:     "a",
		`<a>; rel="prev"`:                "",
		`<a`:                             "",
		`a>; rel="next"`:                 "",
		`<>; rel="next"`:                 "",
		`<a>`:                            "",
	} {
		resp := &http.Response{Header: http.Header{"Link": []string{header}}}
		if got := nextPage(resp); got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
}

// FuzzReferrers holds that a list is read within its bounds, and as the decoder of
// a whole one reads it.
func FuzzReferrers(f *testing.F) {
	digest := `"sha256:` + strings.Repeat("a", 64) + `"`
	for _, seed := range []string{
		`{"schemaVersion":2,"manifests":[{"digest":` + digest + `,"size":1,"annotations":{"a":"b"}}]}`,
		`{"manifests":null}`, `{}`, `{"manifests":{}}`, `{"manifests":[{}`, `{"a":[{}],"manifests":[{"digest":"sha512:00"}]}`, `[]`,
		`{"manifests":[` + strings.Repeat("{},", image.ReferrerLimit) + `{}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, list []byte) {
		r := &reader{left: 1 << 20}
		found, err := r.page(bytes.NewReader(list))
		if len(found) > image.ReferrerLimit || len(list) > 1<<20 && err == nil && r.left < 0 {
			t.Fatalf("%d manifests, %v", len(found), err)
		}
		var whole struct {
			Manifests []struct {
				Digest string `json:"digest"`
			} `json:"manifests"`
		}
		if err != nil || json.Unmarshal(list, &whole) != nil || bytes.Count(list, []byte("anifests")) != 1 || !bytes.Contains(list, []byte(`"manifests"`)) {
			return
		}
		want := 0
		for _, m := range whole.Manifests {
			if _, err := v1.NewHash(m.Digest); err == nil {
				want++
			}
		}
		if len(found) != want && !bytes.Contains(list, []byte(`\`)) {
			t.Fatalf("%d manifests, want %d", len(found), want)
		}
	})
}
