package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/image"
)

const (
	// PageLimit bounds the pages that are read of one list of referrers. Together
	// they have no more bytes and values than one answer may have.
	PageLimit = 16
	// ListBytes bounds a list of referrers. It is decoded one manifest at a time, and
	// holds what each says of itself: two times what a registry accepts as one.
	ListBytes = 8 << 20
)

// AnnotationMore marks a list of referrers that goes on beyond a bound.
const AnnotationMore = "dev.skep.referrers.more"

func forReferrers(req *http.Request) bool {
	first, _ := origin(req)
	return strings.Contains(first.URL.Path, "/referrers/")
}

// listed makes of a registry's answer about referrers one that
// go-containerregistry understands: it neither follows pages nor takes 405 and 501
// for what they are, a registry without that API. What is beyond the bounds is cut
// off: whoever may push beside an image must not keep all of it from being read.
func (t *Bounded) listed(req *http.Request, resp *http.Response) (*http.Response, error) {
	switch resp.StatusCode {
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		resp.StatusCode, resp.Status = http.StatusNotFound, "404 Not Found"
		return resp, nil
	case http.StatusOK:
	default:
		return resp, nil
	}
	if resp.Header.Get("Content-Type") != string(types.OCIImageIndex) {
		return resp, nil
	}
	all, err := t.pages(req, resp)
	if err != nil {
		return nil, fmt.Errorf("read list of referrers: %w", err)
	}
	body, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("join pages of referrers: %w", err)
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	resp.Header.Del("Content-Length")
	return resp, nil
}

// pages reads a list of referrers that begins with an answer, up to the bounds.
func (t *Bounded) pages(req *http.Request, resp *http.Response) (*v1.IndexManifest, error) {
	all := &v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{}}
	read := &reader{left: ListBytes}
	for page := 1; ; page++ {
		found, err := read.page(resp.Body)
		_ = resp.Body.Close()
		all.Manifests = append(all.Manifests, found...)
		var full *image.TooManyValuesError
		cut := errors.As(err, &full) || errors.Is(err, image.ErrTooLong)
		if err != nil && (!cut || len(all.Manifests) == 0) {
			return nil, err
		}
		next := nextPage(resp)
		if next == "" && !cut {
			return all, nil
		}
		if cut || page == PageLimit {
			all.Annotations = map[string]string{AnnotationMore: "true"}
			return all, nil
		}
		if req, resp, err = t.page(req, next); err != nil {
			return nil, err
		}
	}
}

// reader reads the pages of one list, and bounds what they have together.
type reader struct {
	from   io.Reader
	values image.ValueCounter
	left   int64
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.left -= int64(n)
	_, _ = r.values.Write(p[:n])
	switch {
	case r.left < 0:
		return 0, image.ErrTooLong
	case r.values.Count > image.ReferrerLimit:
		return 0, &image.TooManyValuesError{Count: r.values.Count, Limit: image.ReferrerLimit}
	}
	return n, err
}

// page reads the manifests of one page, up to where an error ends it. What is
// written beside their digest, type and size is left out.
func (r *reader) page(body io.Reader) (found []v1.Descriptor, err error) {
	r.from, r.values = body, image.ValueCounter{Count: r.values.Count}
	decoder := json.NewDecoder(r)
	if err := expect(decoder, '{'); err != nil {
		return nil, err
	}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		if key != "manifests" {
			if err := decoder.Decode(new(json.RawMessage)); err != nil {
				return nil, err
			}
			continue
		}
		return manifests(decoder)
	}
	return nil, expect(decoder, '}')
}

// manifests reads descriptors, up to where an error ends them. One by another hash
// than sha256 is nothing that is read.
func manifests(decoder *json.Decoder) (found []v1.Descriptor, err error) {
	token, err := decoder.Token()
	if err != nil || token == nil { // Go writes an empty list as null.
		return nil, err
	}
	if token != json.Delim('[') {
		return nil, fmt.Errorf("its manifests are %v and no list", token)
	}
	for decoder.More() {
		var d struct {
			MediaType    types.MediaType `json:"mediaType"`
			Digest       string          `json:"digest"`
			Size         int64           `json:"size"`
			ArtifactType string          `json:"artifactType"`
		}
		if err := decoder.Decode(&d); err != nil {
			return found, err
		}
		if digest, err := v1.NewHash(d.Digest); err == nil {
			found = append(found, v1.Descriptor{MediaType: d.MediaType, Digest: digest, Size: d.Size, ArtifactType: d.ArtifactType})
		}
	}
	return found, expect(decoder, ']')
}

// expect reads one delimiter.
func expect(decoder *json.Decoder, want json.Delim) error {
	token, err := decoder.Token()
	if err == nil && token != want {
		err = fmt.Errorf("it has %v where %q would be", token, want.String())
	}
	return err
}

// page asks for one more page: of the same list, at the same registry, with the
// credentials that are good for it.
func (t *Bounded) page(req *http.Request, next string) (*http.Request, *http.Response, error) {
	to, err := req.URL.Parse(next)
	if err != nil || to.Scheme != req.URL.Scheme || to.Host != req.URL.Host || to.Path != req.URL.Path {
		return nil, nil, errors.New("the registry names a next page that is not of this list")
	}
	again := req.Clone(req.Context())
	again.URL = &url.URL{Scheme: req.URL.Scheme, Host: req.URL.Host, Path: req.URL.Path, RawQuery: to.RawQuery}
	resp, err := t.tried(again)
	if err == nil && resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		err = fmt.Errorf("the registry answers a further page with status %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return again, resp, err
}

// nextPage is the link to the next page in an answer, as RFC 8288 writes it; empty
// where there is none.
func nextPage(resp *http.Response) string {
	for _, header := range resp.Header.Values("Link") {
		for link := range strings.SplitSeq(header, ",") {
			target, parameters, found := strings.Cut(strings.TrimSpace(link), ">")
			if !found || !strings.HasPrefix(target, "<") {
				continue
			}
			for parameter := range strings.SplitSeq(parameters, ";") {
				name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
				if strings.EqualFold(name, "rel") && strings.EqualFold(strings.Trim(value, `"`), "next") {
					return target[1:]
				}
			}
		}
	}
	return ""
}
