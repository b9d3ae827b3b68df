package cluster

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
)

// The states of a Part.
const (
	OK      = "OK"
	Warning = "Warning"
	Unknown = "Unknown"
)

// Part is how a part of Skep does.
type Part struct {
	Name string `json:"name"`
	// State is OK, Warning or Unknown, and Message says more.
	State   string `json:"state"`
	Message string `json:"message"`
	// Needs is the right that the caller lacks to know.
	Needs string `json:"needs,omitempty"`

	// hidden is that nothing is known of it for want of a right.
	hidden bool
}

// The names that the chart gives.
const (
	defaultNamespace = "skep-system"
	controllerName   = "skep-controller"
	agentName        = "skep-agent"
	webhookName      = "skep"
	trustName        = "skep-trust"
	trustFile        = "trust.pem"
)

// hooks reads the webhook of the chart, and with it the namespace that Skep is in.
func (c *Client) hooks(ctx context.Context) (hooks webhooks, of object, namespace string, err error) {
	of = object{group: "admissionregistration.k8s.io/v1", resource: "validatingwebhookconfigurations", name: webhookName}
	err = c.get(ctx, of, "", &hooks)
	namespace = defaultNamespace
	for _, h := range hooks.Webhooks {
		if h.ClientConfig.Service != nil {
			namespace = h.ClientConfig.Service.Namespace
		}
	}
	return hooks, of, namespace, err
}

// Health asks how each part does, all at once, and returns Skep's namespace.
func (c *Client) Health(ctx context.Context) (parts []Part, namespace string) {
	hooks, of, namespace, hooksErr := c.hooks(ctx)
	ask := []func() Part{
		func() Part { return c.controller(ctx, namespace) },
		func() Part {
			return part("webhook", of, hooksErr, func() (string, string) { return authority(hooks, time.Now()) })
		},
		func() Part { return c.agents(ctx, namespace) },
		func() Part { return c.trust(ctx, namespace) },
		func() Part { return c.conditioned(ctx, "policies", ours("", "clusterbpfpolicies", "")) },
		func() Part { return c.conditioned(ctx, "signers", ours("", "bpfsigners", "")) },
		func() Part { return c.conditioned(ctx, "sources", ours("", "cueartifacts", "")) },
	}
	parts = make([]Part, len(ask))
	var group sync.WaitGroup
	for i, f := range ask {
		group.Go(func() { parts[i] = f() })
	}
	group.Wait()
	return parts, namespace
}

// part is a part of which an object tells, unless it could not be read.
func part(name string, o object, err error, tell func() (state, message string)) Part {
	switch {
	case errors.Is(err, errForbidden):
		return Part{Name: name, State: Unknown, Message: "unknown: it needs the right to " + o.right(), Needs: o.right(), hidden: true}
	case isAbsent(err):
		return Part{Name: name, State: Warning, Message: fmt.Sprintf("there is no %s", strings.TrimPrefix(strings.TrimPrefix(o.right(), "get "), "list "))}
	case err != nil:
		return Part{Name: name, State: Unknown, Message: "unknown: " + err.Error()}
	}
	state, message := tell()
	return Part{Name: name, State: state, Message: message}
}

// controller says how many replicas are ready, and which one leads.
func (c *Client) controller(ctx context.Context, namespace string) Part {
	var d deployment
	o := object{group: "apps/v1", namespace: namespace, resource: "deployments", name: controllerName}
	p := part("controller", o, c.get(ctx, o, "", &d), func() (string, string) {
		wanted := int32(1)
		if d.Spec.Replicas != nil {
			wanted = *d.Spec.Replicas
		}
		return warnIf(d.Status.ReadyReplicas < max(wanted, 1)), fmt.Sprintf("%d of %d ready", d.Status.ReadyReplicas, wanted)
	})
	var l lease
	o = object{group: "coordination.k8s.io/v1", namespace: namespace, resource: "leases", name: controllerName}
	leader := part("", o, c.get(ctx, o, "", &l), func() (string, string) {
		if l.Spec.HolderIdentity == "" || l.Spec.RenewTime == nil {
			return Warning, "none"
		}
		// The identity of a replica is the Pod's name, and something unique.
		holder, _, _ := strings.Cut(l.Spec.HolderIdentity, "_")
		renewed := time.Since(l.Spec.RenewTime.Time)
		late := renewed > time.Duration(l.Spec.LeaseDurationSeconds)*time.Second
		return warnIf(late), fmt.Sprintf("%s, which renewed the lease %s ago", holder, duration.HumanDuration(renewed))
	})
	p.Message += "; leader " + leader.Message
	p.Needs = cmp.Or(p.Needs, leader.Needs)
	p.State, p.hidden = worst(p.State, leader.State), p.hidden && leader.hidden
	return p
}

// worst is the state that a reader should know of: a warning before what is unknown.
func worst(a, b string) string {
	for _, s := range []string{Warning, Unknown} {
		if a == s || b == s {
			return s
		}
	}
	return OK
}

// warnIf is the state of a part with or without a fault.
func warnIf(fault bool) string {
	if fault {
		return Warning
	}
	return OK
}

// soon is how long before its end a certificate is warned of.
const soon = 14 * 24 * time.Hour

// authority says until when the webhook's certificate authority is valid.
func authority(hooks webhooks, now time.Time) (state, message string) {
	var until time.Time
	for _, h := range hooks.Webhooks {
		for rest := h.ClientConfig.CABundle; ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if cert, err := x509.ParseCertificate(block.Bytes); err == nil && cert.NotAfter.After(until) {
				until = cert.NotAfter
			}
		}
	}
	if until.IsZero() {
		return Warning, "it has no certificate authority yet: the API server rejects what people write"
	}
	left := until.Sub(now)
	if left <= 0 {
		return Warning, "its certificate authority ended at " + until.UTC().Format(time.RFC3339)
	}
	return warnIf(left < soon), fmt.Sprintf("its certificate authority is valid until %s, for %s", until.UTC().Format(time.RFC3339), duration.HumanDuration(left))
}

// table is a list as kubectl get prints it: a fraction of the objects themselves.
const table = "application/json;as=Table;v=v1;g=meta.k8s.io"

// agents says how many nodes report, with which versions.
func (c *Client) agents(ctx context.Context, namespace string) Part {
	o := ours("", "bpfnodes", "")
	versions, notReady, err := c.reports(ctx, o)
	p := part("agents", o, err, func() (string, string) {
		count, lines := 0, []string{}
		for _, version := range slices.Sorted(maps.Keys(versions)) {
			count += versions[version]
			lines = append(lines, fmt.Sprintf("%s on %d", version, versions[version]))
		}
		message := fmt.Sprintf("%d report", count)
		if len(notReady) > 0 {
			lines = append(lines, "not ready: "+first(notReady))
		}
		if len(lines) > 0 {
			message += ": " + strings.Join(lines, ", ")
		}
		return warnIf(count == 0 || len(notReady) > 0), message
	})
	var d daemonSet
	o = object{group: "apps/v1", namespace: namespace, resource: "daemonsets", name: agentName}
	if c.get(ctx, o, "", &d) == nil {
		p.Message = fmt.Sprintf("%d of %d ready; %s", d.Status.NumberReady, d.Status.DesiredNumberScheduled, p.Message)
		p.State, p.hidden = worst(p.State, warnIf(d.Status.NumberReady < d.Status.DesiredNumberScheduled)), false
	}
	return p
}

// reports counts the nodes that report by the version of their agent, and names those that are not ready.
func (c *Client) reports(ctx context.Context, o object) (versions map[string]int, notReady []string, err error) {
	versions = map[string]int{}
	for next := ""; ; {
		o.query = url.Values{"limit": {strconv.Itoa(pageSize)}, "includeObject": {"None"}}
		if next != "" {
			o.query.Set("continue", next)
		}
		var t metav1.Table
		if err := c.get(ctx, o, table, &t); err != nil {
			return nil, nil, err
		}
		column := func(names ...string) int {
			return slices.IndexFunc(t.ColumnDefinitions, func(d metav1.TableColumnDefinition) bool { return slices.Contains(names, strings.ToLower(d.Name)) })
		}
		name, version, ready := column("name"), column("version", "agent"), column("ready")
		for _, row := range t.Rows {
			cell := func(at int) string {
				if at < 0 || at >= len(row.Cells) || row.Cells[at] == nil {
					return ""
				}
				return fmt.Sprint(row.Cells[at])
			}
			versions[cmp.Or(cell(version), "unknown version")]++
			if cell(ready) == string(metav1.ConditionFalse) {
				notReady = append(notReady, cell(name))
			}
		}
		if next = t.Continue; next == "" {
			return versions, notReady, nil
		}
	}
}

// trust names the keys whose seals agents accept.
func (c *Client) trust(ctx context.Context, namespace string) Part {
	var m configMap
	o := object{namespace: namespace, resource: "configmaps", name: trustName}
	return part("trust", o, c.get(ctx, o, "", &m), func() (string, string) {
		ids := keyIDs([]byte(m.Data[trustFile]))
		if len(ids) == 0 {
			return Warning, "no key: agents accept no intent"
		}
		return OK, "keys " + display.List(ids)
	})
}

// keyIDs are the ids of public keys in PEM, as envelopes name them.
func keyIDs(bundle []byte) (ids []string) {
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if public, ok := key.(ed25519.PublicKey); err == nil && ok {
			sum := sha256.Sum256(public)
			ids = append(ids, hex.EncodeToString(sum[:8]))
		}
	}
	return ids
}

// object that has conditions.
type conditioned struct {
	metav1.ObjectMeta `json:"metadata"`

	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// conditioned counts objects, and names those that are not ready.
func (c *Client) conditioned(ctx context.Context, name string, o object) Part {
	all, err := list[conditioned](ctx, c, o)
	if isAbsent(err) {
		return Part{Name: name, State: OK, Message: "none: the API " + o.resource + " is not installed"}
	}
	return part(name, o, err, func() (string, string) {
		var not []string
		for _, one := range all {
			ready := meta.FindStatusCondition(one.Status.Conditions, v1alpha1.ConditionReady)
			if ready == nil || ready.Status == metav1.ConditionTrue {
				continue
			}
			not = append(not, fmt.Sprintf("%s (%s)", strings.TrimPrefix(one.Namespace+"/"+one.Name, "/"), ready.Reason))
		}
		if len(not) > 0 {
			return Warning, fmt.Sprintf("%d, not ready: %s", len(all), first(not))
		}
		return OK, fmt.Sprintf("%d, all ready", len(all))
	})
}

// first is the start of a list for people.
func first(all []string) string {
	const few = 3
	if len(all) > few {
		return fmt.Sprintf("%s, and %d more", display.List(all[:few]), len(all)-few)
	}
	return display.List(all)
}

// sorted are the keys in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
