// Package clustermaps reads maps of applications on the nodes of a cluster, by maps.skep.dev of its API server. It asks as the
// caller, and needs no right but that API's; it reads nothing of this machine's kernel.
package clustermaps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
)

// api is where the API server has the maps.
const api = "/apis/maps." + v1alpha1.Group + "/v1alpha1"

// Request is what is read.
type Request struct {
	// Node is the node, and Namespace and Name the application; without a namespace it is a ClusterBpfApplication.
	Node, Namespace, Name string
	// Map is the map; none lists them. Watch reads its records, decoded by Type, and Key one entry.
	Map   string
	Watch bool
	Type  string
	Key   *string
}

// address is the request's path and parameters.
func (r Request) address() *url.URL {
	parts := []string{api}
	if r.Watch {
		parts = append(parts, "watch")
	}
	if r.Namespace != "" {
		parts = append(parts, "namespaces", r.Namespace, "bpfapplications")
	} else {
		parts = append(parts, "clusterbpfapplications")
	}
	parts = append(parts, r.Name, "maps")
	query := url.Values{"node": {r.Node}}
	if r.Map != "" {
		parts = append(parts, r.Map)
	}
	if r.Type != "" {
		query.Set("type", r.Type)
	}
	if r.Key != nil {
		query.Set("key", *r.Key)
	}
	return &url.URL{Path: path.Join(parts...), RawQuery: query.Encode()}
}

// check rejects names that would be another path.
func (r Request) check() error {
	for what, name := range map[string]string{"namespace": r.Namespace, "application": r.Name, "map": r.Map} {
		if strings.ContainsAny(name, "/%?#") || name == "." || name == ".." {
			return fmt.Errorf("%q is the name of no %s", name, what)
		}
	}
	return nil
}

// Read calls f for each map, entry or record as the API server answers them.
func Read(ctx context.Context, config *rest.Config, r Request, f func(json.RawMessage) error) error {
	if err := r.check(); err != nil {
		return err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	client.Timeout = 0
	to := r.address()
	to.Scheme, to.Host, to.Path = base.Scheme, base.Host, path.Join("/", base.Path, to.Path)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return fmt.Errorf("read maps of %s: %w", r.Name, err)
	}
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return rejected(response)
	}
	for lines := json.NewDecoder(response.Body); ; {
		var line json.RawMessage
		switch err := lines.Decode(&line); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the answer of the API server: %w", err)
		}
		var status metav1.Status
		if json.Unmarshal(line, &status) == nil && status.Kind == "Status" {
			return errors.New(status.Message)
		}
		if err := f(line); err != nil {
			return err
		}
	}
}

// maxStatus bounds what is read of a rejection.
const maxStatus = 64 << 10

// rejected says why the API server does not answer, and what to do.
func rejected(response *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxStatus))
	if err != nil {
		return fmt.Errorf("read the answer of the API server: %w", err)
	}
	var status metav1.Status
	isStatus := json.Unmarshal(body, &status) == nil && status.Kind == "Status"
	switch {
	case response.StatusCode == http.StatusNotFound && !isStatus:
		return errors.New("the cluster has no API maps.skep.dev: an admin installs the chart with mapReads.enabled=true")
	case response.StatusCode == http.StatusServiceUnavailable && !isStatus:
		return errors.New("the API maps.skep.dev is not available; kubectl get apiservice v1alpha1.maps.skep.dev says why")
	case response.StatusCode == http.StatusUnauthorized:
		return errors.New("the cluster does not accept your credentials: renew the client certificate or token of the kubeconfig")
	case !isStatus:
		return fmt.Errorf("the API server answers %s", response.Status)
	case response.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%s; an admin allows it by a binding of the ClusterRole skep-map-reader", status.Message)
	case response.StatusCode == http.StatusNotFound:
		return exit.Absent("%s", status.Message)
	}
	return errors.New(status.Message)
}
