package aggregated

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/text"
)

// frontProxy knows the API server by its client certificate, and whom it speaks for by its headers, as the API server
// publishes both.
type frontProxy struct {
	reader client.Reader
	known  atomic.Pointer[authenticator.Request]
	// log has why requests are rejected, now and then: users are told to look there.
	log  logr.Logger
	said rate.Sometimes
}

// sayAgain is how often why a request is rejected is logged, and maxCause bounds that, in characters.
const (
	sayAgain = time.Minute
	maxCause = 300
)

// lookAgain is how often what is published is read, and the APIServices looked at.
const lookAgain = 10 * time.Second

// look reads what the API server publishes.
func (p *frontProxy) look(ctx context.Context) error {
	const name = "extension-apiserver-authentication"
	var published corev1.ConfigMap
	if err := p.reader.Get(ctx, types.NamespacedName{Namespace: "kube-system", Name: name}, &published); err != nil {
		return fmt.Errorf("read ConfigMap kube-system/%s: %w", name, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(published.Data["requestheader-client-ca-file"])) {
		p.known.Store(nil)
		return fmt.Errorf("read ConfigMap kube-system/%s: it has no requestheader-client-ca-file: kube-apiserver needs --requestheader-client-ca-file", name)
	}
	lists := map[string]headerrequest.StaticStringSlice{}
	for _, key := range []string{"requestheader-allowed-names", "requestheader-username-headers", "requestheader-uid-headers",
		"requestheader-group-headers", "requestheader-extra-headers-prefix"} {
		var list headerrequest.StaticStringSlice
		if text := published.Data[key]; text != "" {
			if err := json.Unmarshal([]byte(text), &list); err != nil {
				p.known.Store(nil)
				return fmt.Errorf("read %s of ConfigMap kube-system/%s: %w", key, name, err)
			}
		}
		lists[key] = list
	}
	if len(lists["requestheader-allowed-names"]) == 0 && share(published.Data["requestheader-client-ca-file"], published.Data["client-ca-file"]) {
		p.known.Store(nil)
		return fmt.Errorf("read ConfigMap kube-system/%s: an authority of users' certificates (client-ca-file) is the front proxy's, too, so that every user's "+
			"certificate would speak for all users: kube-apiserver needs --requestheader-allowed-names, or an authority of its own for the front proxy", name)
	}
	options := x509request.DefaultVerifyOptions()
	options.Roots = roots
	verify := headerrequest.NewDynamicVerifyOptionsSecure(func() (x509.VerifyOptions, bool) { return options, true },
		lists["requestheader-allowed-names"], lists["requestheader-username-headers"], lists["requestheader-uid-headers"],
		lists["requestheader-group-headers"], lists["requestheader-extra-headers-prefix"])
	p.known.Store(&verify)
	return nil
}

// share reports whether two bundles have an authority in common, by its key: it may be in each by another certificate.
func share(some, others string) bool {
	keys := map[string]bool{}
	each := func(bundle string, do func(key string)) {
		for block, rest := pem.Decode([]byte(bundle)); block != nil; block, rest = pem.Decode(rest) {
			if c, err := x509.ParseCertificate(block.Bytes); err == nil {
				do(string(c.RawSubjectPublicKeyInfo))
			}
		}
	}
	each(some, func(key string) { keys[key] = true })
	shared := false
	each(others, func(key string) { shared = shared || keys[key] })
	return shared
}

// user is whom the API server speaks for.
func (p *frontProxy) user(r *http.Request) (user.Info, error) {
	known := p.known.Load()
	if known == nil {
		return nil, errNoProxy
	}
	response, ok, err := (*known).AuthenticateRequest(r)
	if err != nil || !ok {
		cause := "it shows no certificate, or names no user"
		if err != nil {
			cause = text.CutRunes(text.Line(err.Error()), maxCause)
		}
		p.said.Do(func() {
			p.log.Info("a request is rejected as none of kube-apiserver's", "from", r.RemoteAddr, "cause", cause)
		})
		return nil, errNoProxy
	}
	return response.User, nil
}

// follow keeps what is known of the API server, and what it knows of this server, up to date until ctx ends.
func (s *Server) follow(ctx context.Context) {
	said := ""
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := errors.Join(s.proxy.look(ctx), s.publishAll(ctx))
		if err != nil && err.Error() != said {
			ctrl.LoggerFrom(ctx).Error(err, "keep aggregated APIs behind the API server")
		}
		said = ""
		if err != nil {
			said = err.Error()
		}
	}, lookAgain)
}

// publishAll has the API server trust the certificate of this server.
func (s *Server) publishAll(ctx context.Context) error {
	authorities, err := s.Authorities(ctx)
	if err != nil || len(authorities) == 0 {
		return err
	}
	var errs []error
	for _, api := range s.APIs {
		errs = append(errs, s.publish(ctx, api, authorities))
	}
	return errors.Join(errs...)
}

// publish writes the authorities into the APIService of an API.
func (s *Server) publish(ctx context.Context, api API, authorities []byte) error {
	service := api.service()
	name := service.GetName()
	if err := s.Live.Get(ctx, types.NamespacedName{Name: name}, service); err != nil {
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("there is no APIService %s: the chart has it with %s", name, api.Value)
		}
		return fmt.Errorf("read APIService %s: %w", name, err)
	}
	spec, _, _ := unstructured.NestedMap(service.Object, "spec")
	wanted, _ := json.Marshal(authorities) // As base64, which is how the field is written.
	if now, _ := json.Marshal(spec["caBundle"]); bytes.Equal(now, wanted) {
		return nil
	}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"caBundle":%s}}`, wanted))
	if err := s.Writer.Patch(ctx, service, patch); err != nil {
		return fmt.Errorf("write caBundle of APIService %s: %w", name, err)
	}
	return nil
}
