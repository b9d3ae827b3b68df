// Package aggregated serves API groups that kube-apiserver hands on: it authenticates, authorises and audits each request. The package
// owns how kube-apiserver is known, how often users may ask, and reviews of what they may; it knows no resource of a group.
package aggregated

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/listen"
)

// API is a version of a group.
type API struct {
	Group, Version string
	// Value is the value of the chart that has its APIService.
	Value string
	// Resources are those by which kube-apiserver and kubectl find it.
	Resources []metav1.APIResource
	// OpenAPI is its document of OpenAPI v3, as JSON; nil for none.
	OpenAPI []byte
	// Register adds the handlers of its resources. They have the paths below Base, and users by UserOf.
	Register func(*http.ServeMux)
}

// Base is the path of an API.
func (a API) Base() string { return "/apis/" + a.Group + "/" + a.Version }

// groupVersion is how an API is named in objects.
func (a API) groupVersion() string { return a.Group + "/" + a.Version }

// Server serves APIs on every replica.
type Server struct {
	// Listener or Address is where. Certificate shows who serves, and Authorities are those that signed it, in PEM. Needed.
	Address     string
	Listener    net.Listener
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Authorities func(context.Context) ([]byte, error)
	// Live reads past the cache, and Writer writes APIServices. Needed.
	Live   client.Reader
	Writer client.Client
	// Namespace is that of the Server, and Informers are of the API server: once the namespace is deleted, the APIServices are, too. Needed.
	Namespace string
	Informers cache.Informers
	// APIs are what is served.
	APIs []API

	proxy frontProxy
}

// connections is how many connections one kube-apiserver may have: each request on its way takes one, and there is room for its
// own checks beyond the Bounds of all APIs.
const connections = 64

// NeedLeaderElection tells a manager to run the Server on every replica.
func (s *Server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	listener := s.Listener
	if listener == nil {
		var err error
		if listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address); err != nil {
			return fmt.Errorf("serve aggregated APIs: %w", err)
		}
	}
	s.proxy.reader, s.proxy.log, s.proxy.said.Interval = s.Live, ctrl.LoggerFrom(ctx), sayAgain
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { s.follow(ctx) })
	following.Go(func() { s.leave(ctx) })
	// Which certificate counts, changes; the handler verifies it for each request.
	config := &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: s.Certificate, ClientAuth: tls.RequestClientCert, SessionTicketsDisabled: true}
	return listen.ServeUpTo(ctx, listener, connections, config, s.handler())
}

// handler lets in the requests of kube-apiserver.
func (s *Server) handler() http.Handler {
	return Authenticated(s.proxy.user, s.APIs...)
}

// Authenticated serves APIs to users that the function finds in requests; what it rejects is answered 503. All may see what the APIs have:
// while one does not say that, kube-controller-manager deletes no namespace of the cluster.
func Authenticated(userOf func(*http.Request) (user.Info, error), apis ...API) http.Handler {
	mux, open := http.NewServeMux(), http.NewServeMux()
	for _, api := range apis {
		for path, object := range map[string]any{"/apis/" + api.Group: api.group(), api.Base(): api.resources()} {
			open.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { WriteJSON(w, http.StatusOK, object) })
		}
		api.Register(mux)
	}
	registerOpenAPI(open, apis)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := userOf(r)
		if err != nil {
			// It keeps no connection, of which there are few.
			w.Header().Set("Connection", "close")
		}
		if _, known := open.Handler(r); known != "" {
			open.ServeHTTP(w, r)
			return
		}
		if err != nil {
			// With 401, a user whom kube-apiserver knows would be asked to log in.
			Reject(w, noderequest.Fail(http.StatusServiceUnavailable, "%v", err))
			return
		}
		// A request has no body, and takes as long as its answer does.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, who)))
	})
}

// userKey is the key of a request's user in its context.
type userKey struct{}

// UserOf returns the user of a request that the Server handed on.
func UserOf(ctx context.Context) user.Info { return ctx.Value(userKey{}).(user.Info) }

// resources and group are an API as clients of Kubernetes find it.
func (a API) resources() metav1.APIResourceList {
	return metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: a.groupVersion(),
		APIResources: a.Resources}
}

func (a API) group() metav1.APIGroup {
	version := metav1.GroupVersionForDiscovery{GroupVersion: a.groupVersion(), Version: a.Version}
	return metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: a.Group,
		Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}
}

// errNoProxy says that a request is refused as none of the API server's.
var errNoProxy = errors.New("this is not known as a request of kube-apiserver, which authenticates, authorises and audits those of users: use kubectl. " +
	"If you did, the log of skep-controller says why the certificate of kube-apiserver's front proxy is not known")
