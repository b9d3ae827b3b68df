// Package cluster reads what a cluster knows of Skep, as the caller, and prints it. What the caller may not read is unknown and
// names the right that is missing: it must not make the rest unreadable. It changes nothing.
package cluster

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/kubeconfig"
)

// Client asks an API server as the caller.
type Client struct {
	// Place names the cluster for people.
	Place string
	// Namespace is the caller's, and Chosen reports whether the caller named it.
	Namespace string
	Chosen    bool

	rest   *rest.RESTClient
	config *rest.Config
}

// pageSize is how many objects one request asks for.
const pageSize = 500

// Open returns a client for the cluster of the flags. warnings gets what the API server warns of.
func Open(k *kubeconfig.Flags, warnings io.Writer) (*Client, error) {
	config, namespace, err := k.Load()
	if err != nil {
		return nil, err
	}
	return open(config, k.Describe(), namespace, k.Chosen(), warnings)
}

// open is Open with a configuration.
func open(config *rest.Config, place, namespace string, chosen bool, warnings io.Writer) (*Client, error) {
	config = rest.CopyConfig(config)
	// A command asks a few times and ends: it need not space its requests.
	config.QPS = -1
	config.NegotiatedSerializer = statuses()
	config.WarningHandler = rest.NewWarningWriter(warnings, rest.WarningWriterOptions{Deduplicate: true})
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	return &Client{Place: place, Namespace: namespace, Chosen: chosen, rest: client, config: config}, nil
}

// statuses decodes what an API server answers if it does not answer with an object.
func statuses() runtime.NegotiatedSerializer {
	scheme, core := runtime.NewScheme(), schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, core)
	scheme.AddUnversionedTypes(core, &metav1.Status{})
	return serializer.NewCodecFactory(scheme).WithoutConversion()
}

// object is where an object or a list is, and what reading it needs.
type object struct {
	// group is the API with its version, such as apps/v1; empty is the core's.
	group, namespace, resource, name, subresource string
	query                                         url.Values
}

// path is that of the API.
func (o object) path() string {
	parts := []string{"/apis", o.group}
	if o.group == "" {
		parts = []string{"/api/v1"}
	}
	if o.namespace != "" {
		parts = append(parts, "namespaces", o.namespace)
	}
	return path.Join(append(parts, o.resource, o.name, o.subresource)...)
}

// right says what a caller needs to read it.
func (o object) right() string {
	verb := "list"
	if o.name != "" {
		verb = "get"
	}
	resource := o.resource
	if group, _, _ := strings.Cut(o.group, "/"); group != "" {
		resource += "." + group
	}
	if o.subresource != "" {
		resource += "/" + o.subresource
	}
	if o.name != "" {
		resource += " " + o.name
	}
	if o.namespace != "" {
		return fmt.Sprintf("%s %s in namespace %s", verb, resource, o.namespace)
	}
	return verb + " " + resource
}

// check rejects names that would be another path.
func (o object) check() error {
	for _, name := range []string{o.namespace, o.name} {
		if strings.ContainsAny(name, "/%?#") || name == "." || name == ".." {
			return fmt.Errorf("%q is the name of no object", name)
		}
	}
	return nil
}

// errForbidden is in the error of what the caller may not read.
var errForbidden = errors.New("forbidden")

// get reads an object, or a page of a list, as the media type, or as JSON if it is empty.
func (c *Client) get(ctx context.Context, o object, media string, into any) error {
	if err := o.check(); err != nil {
		return err
	}
	request := c.rest.Get().AbsPath(o.path()).SetHeader("Accept", "application/json")
	if media != "" {
		request.SetHeader("Accept", media)
	}
	for name, values := range o.query {
		for _, value := range values {
			request.Param(name, value)
		}
	}
	body, err := bodyOf(request.Do(ctx))
	if err != nil {
		return c.explain(o.right(), err)
	}
	if err := Decode(body, into); err != nil {
		return fmt.Errorf("%s: read the answer of the API server: %w", o.right(), err)
	}
	return nil
}

// bodyOf is an answer. Its error has what the API server says: that of Raw has the code of the answer alone.
func bodyOf(answer rest.Result) ([]byte, error) {
	body, _ := answer.Raw()
	return body, answer.Error()
}

// Decode reads JSON with its numbers as they are written: those of 64 bits are no floating-point ones.
func Decode(body []byte, into any) error {
	numbers := json.NewDecoder(bytes.NewReader(body))
	numbers.UseNumber()
	return numbers.Decode(into)
}

// explain says what an error of doing something is about: a right that the caller lacks, credentials, the cluster, or the object.
func (c *Client) explain(do string, err error) error {
	var away *url.Error
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: %w", errForbidden, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: %s does not accept your credentials%s: renew the client certificate or token of the kubeconfig (%w)", do, c.Place,
			c.certificateEnd(), err)
	case errors.As(err, &away) && away.Timeout():
		return fmt.Errorf("%s did not answer in time at %s: %w", c.Place, c.config.Host, away.Err)
	case errors.As(err, &away):
		return fmt.Errorf("%s cannot be reached at %s: %w", c.Place, c.config.Host, away.Err)
	}
	return fmt.Errorf("%s: %w", do, err)
}

// certificateEnd says when the client certificate of the caller ended, if it did.
func (c *Client) certificateEnd() string {
	files := rest.CopyConfig(c.config)
	if err := rest.LoadTLSFiles(files); err != nil {
		return ""
	}
	if block, _ := pem.Decode(files.CertData); block != nil {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && cert.NotAfter.Before(time.Now()) {
			return ", and the client certificate of the kubeconfig ended at " + cert.NotAfter.UTC().Format(time.RFC3339)
		}
	}
	return ""
}

// page is a list of the API server with one kind of items.
type page[T any] struct {
	metav1.ListMeta `json:"metadata"`
	Items           []T `json:"items"`
}

// list reads a list.
func list[T any](ctx context.Context, c *Client, o object) (all []T, err error) {
	err = pages(ctx, c, o, func(items []T) (more bool) {
		all = append(all, items...)
		return true
	})
	return all, err
}

// pages reads a list, and hands over the items of each page while more are wanted.
func pages[T any](ctx context.Context, c *Client, o object, take func([]T) (more bool)) error {
	query := o.query
	for next := ""; ; {
		o.query = url.Values{"limit": {strconv.Itoa(pageSize)}}
		maps.Copy(o.query, query)
		if next != "" {
			o.query.Set("continue", next)
		}
		var p page[T]
		if err := c.get(ctx, o, "", &p); err != nil {
			return err
		}
		if next = p.Continue; !take(p.Items) || next == "" {
			return nil
		}
	}
}

// ours is an object of Skep's own API.
func ours(namespace, resource, name string) object {
	return object{group: v1alpha1.APIVersion, namespace: namespace, resource: resource, name: name}
}

// isAbsent reports whether there is no such object, or no such API.
func isAbsent(err error) bool {
	status := apierrors.APIStatus(nil)
	return apierrors.IsNotFound(err) || errors.As(err, &status) && status.Status().Code == http.StatusNotFound
}
