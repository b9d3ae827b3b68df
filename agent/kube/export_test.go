package kube

// NamespaceLabels is what the agent underneath asks.
func (a *Agent) NamespaceLabels(namespace string) (labels map[string]string, known, current bool) {
	return a.namespaces.labels(namespace)
}
