package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
)

// Ref is where objects are, for a caller that reads them as they are.
type Ref struct {
	// API is the group with its version, such as apps/v1; empty is the core's.
	API, Namespace, Resource, Name string
	// Fields is a field selector, of a list.
	Fields string
}

// rawPage is how many objects one request asks for: an object may be large, with all its fields.
const rawPage = 50

// object is the same for a request.
func (r Ref) object() object {
	o := object{group: r.API, namespace: r.Namespace, resource: r.Resource, name: r.Name}
	if r.Name == "" {
		o.query = url.Values{"limit": {strconv.Itoa(rawPage)}}
	}
	if r.Fields != "" {
		o.query.Set("fieldSelector", r.Fields)
	}
	return o
}

// Right says what a caller needs to read it.
func (r Ref) Right() string { return r.object().right() }

// IsForbidden reports whether the caller may not read what the error is about.
func IsForbidden(err error) bool { return errors.Is(err, errForbidden) }

// Read reads an object as it is.
func (c *Client) Read(ctx context.Context, r Ref) (found map[string]any, err error) {
	return found, c.get(ctx, r.object(), "", &found)
}

// Each reads the objects of a list as they are, while more are wanted.
func (c *Client) Each(ctx context.Context, r Ref, take func(map[string]any) (more bool)) error {
	return pages(ctx, c, r.object(), func(items []map[string]any) bool {
		for _, one := range items {
			if !take(one) {
				return false
			}
		}
		return true
	})
}

// Home is the namespace that Skep is in, as far as that is known.
func (c *Client) Home(ctx context.Context) string {
	_, _, namespace, _ := c.hooks(ctx)
	return namespace
}

// Version is what the API server says of its build, to each user.
func (c *Client) Version(ctx context.Context) (v map[string]string, err error) {
	body, err := bodyOf(c.rest.Get().AbsPath("/version").Do(ctx))
	if err != nil {
		return nil, c.explain("read the version of the API server", err)
	}
	return v, Decode(body, &v)
}

// Log reads the last lines that a container of a pod wrote, or the one before it, and no more than a number of bytes.
func (c *Client) Log(ctx context.Context, namespace, pod, container string, previous bool, lines, most int64) ([]byte, error) {
	o := object{namespace: namespace, resource: "pods", name: pod, subresource: "log"}
	if err := o.check(); err != nil {
		return nil, err
	}
	stream, err := c.rest.Get().AbsPath(o.path()).Param("container", container).Param("previous", strconv.FormatBool(previous)).
		Param("tailLines", strconv.FormatInt(lines, 10)).Stream(ctx)
	if err != nil {
		return nil, c.explain(o.right(), err)
	}
	defer func() { _ = stream.Close() }()
	body, err := io.ReadAll(io.LimitReader(stream, most))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.right(), err)
	}
	return body, nil
}
