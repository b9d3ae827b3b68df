package targets

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// Choices say which pods attachments choose, so that the change of a pod that none chooses takes
// one look-up. Match may be called from any goroutine, once no more is added.
type Choices struct {
	// All has every pod match.
	All bool
	// Devices reports that attachments are on network devices of the node.
	Devices bool
	// inNamespace are the choices of applications of a namespace, by its name, and ofCluster those of
	// others.
	inNamespace     map[string]*podChoices
	ofCluster       podChoices
	namespaceLabels NamespaceLabels
}

// podChoices are different choices of pods.
type podChoices struct {
	all  []podChoice
	seen map[[2]string]bool
}

// podChoice are the selectors of one attachment or of several.
type podChoice struct{ pods, namespaces labels.Selector }

// NewChoices returns those of no attachment. namespaceLabels is as in Pods.
func NewChoices(namespaceLabels NamespaceLabels) *Choices {
	return &Choices{inNamespace: map[string]*podChoices{}, namespaceLabels: namespaceLabels}
}

// Add adds an attachment of an application's definition. One whose selectors cannot be read has
// every pod match.
func (c *Choices) Add(application v1alpha1.Identity, at v1alpha1.Attachment) {
	if at.Pods == nil {
		c.Devices = c.Devices || at.Interfaces != nil
		return
	}
	to := &c.ofCluster
	namespaceSelector := at.Pods.NamespaceSelector
	if application.Kind == v1alpha1.KindBpfApplication {
		namespaceSelector = nil
		if to = c.inNamespace[application.Namespace]; to == nil {
			to = &podChoices{}
			c.inNamespace[application.Namespace] = to
		}
	}
	if err := to.add(at.Pods.Selector, namespaceSelector); err != nil {
		c.All = true
	}
}

func (c *podChoices) add(pods, namespaces *metav1.LabelSelector) error {
	ofPods, err := selectorOf(pods)
	if err != nil {
		return err
	}
	ofNamespaces, err := selectorOf(namespaces)
	if err != nil {
		return err
	}
	if key := [2]string{ofPods.String(), ofNamespaces.String()}; !c.seen[key] {
		if c.seen == nil {
			c.seen = map[[2]string]bool{}
		}
		c.seen[key] = true
		c.all = append(c.all, podChoice{ofPods, ofNamespaces})
	}
	return nil
}

// Keys returns the keys of labels of pods that selectors name.
func (c *Choices) Keys() map[string]bool {
	keys := map[string]bool{}
	for _, choices := range append(slices.Collect(maps.Values(c.inNamespace)), &c.ofCluster) {
		for _, one := range choices.all {
			requirements, _ := one.pods.Requirements()
			for _, r := range requirements {
				keys[r.Key()] = true
			}
		}
	}
	return keys
}

// Match reports whether an attachment chooses the pod, or may: the labels of its namespace may
// not be known.
func (c *Choices) Match(pod containers.Pod) bool {
	if c.All {
		return true
	}
	if own := c.inNamespace[pod.Namespace]; own != nil && slices.ContainsFunc(own.all,
		func(one podChoice) bool { return one.pods.Matches(labels.Set(pod.Labels)) }) {
		return true
	}
	known := Pods{NamespaceLabels: c.namespaceLabels}
	return slices.ContainsFunc(c.ofCluster.all, func(one podChoice) bool {
		if !one.pods.Matches(labels.Set(pod.Labels)) {
			return false
		}
		is, err := known.inNamespaces(pod.Namespace, one.namespaces)
		return is || err != nil
	})
}
